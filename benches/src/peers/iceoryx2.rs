// SPDX-License-Identifier: MIT OR Apache-2.0
//! iceoryx2: a sample is loaned, filled and sent; one subscriber takes it on the other CPU.

use std::sync::mpsc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{anyhow, Context, Result};
use iceoryx2::config::Config;
use iceoryx2::node::Node;
use iceoryx2::prelude::{ipc, FileName, NodeBuilder, Path, SemanticString, ZeroCopySend};
use overhear_stream::sync::{AtomicBool, Ordering};
use tempfile::TempDir;

use super::Peer;

/// A payload of one word.
#[derive(Debug, Clone, Copy, ZeroCopySend)]
#[repr(C)]
struct Value(u64);

/// Ends the drain before the node, so that each of them removes its files.
struct Keeper {
    end: Arc<AtomicBool>,
    drain: Option<thread::JoinHandle<()>>,
    _node: Node<ipc::Service>,
    _folder: TempDir,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(drain) = self.drain.take() {
            let _ = drain.join();
        }
    }
}

pub(super) fn start() -> Result<Peer> {
    let name = format!("overhear-bench-{}", std::process::id());
    // Its files are in a folder of the run. Its shared memory must be elsewhere; it has a name of
    // the run, by which `make bench` finds remaining files.
    let folder = tempfile::tempdir()?;
    let mut config = Config::default();
    let root = folder
        .path()
        .to_str()
        .context("a folder with a strange name")?;
    config.global.set_root_path(&Path::new(root.as_bytes())?);
    config.global.prefix = FileName::new(b"overhear_bench_")?;
    let node = NodeBuilder::new()
        .config(&config)
        .create::<ipc::Service>()?;
    let service = node
        .service_builder(&name.as_str().try_into()?)
        .publish_subscribe::<Value>()
        .subscriber_max_buffer_size(4096)
        .open_or_create()?;
    let publisher = service.publisher_builder().create()?;
    let (ready, started) = mpsc::channel();
    let ended = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&ended);
    let drain = thread::Builder::new()
        .name("iceoryx2-drain".to_owned())
        .spawn(move || {
            let subscriber = service.subscriber_builder().buffer_size(4096).create();
            let Ok(subscriber) = subscriber else {
                let _ = ready.send(false);
                return;
            };
            let _ = ready.send(true);
            // Relaxed: one drain more or less does not matter.
            while !ended.load(Ordering::Relaxed) {
                while subscriber.receive().is_ok_and(|sample| sample.is_some()) {}
                thread::sleep(Duration::from_millis(1));
            }
        })?;
    if !started.recv()? {
        return Err(anyhow!("its subscriber does not start"));
    }
    Ok(Peer::new(
        "iceoryx2 loan, send",
        200,
        Keeper {
            end,
            drain: Some(drain),
            _node: node,
            _folder: folder,
        },
        move |elements| {
            for element in 0..elements {
                if let Ok(sample) = publisher.loan_uninit() {
                    let _ = sample.write_payload(Value(element)).send();
                }
            }
        },
    ))
}
