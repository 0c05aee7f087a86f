// SPDX-License-Identifier: MIT OR Apache-2.0
//! iceoryx2: a sample is loaned, filled and sent; one subscriber takes it on the other CPU.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{anyhow, Result};
use iceoryx2::prelude::{ipc, NodeBuilder, ZeroCopySend};

use super::Peer;

/// A payload of one word.
#[derive(Debug, Clone, Copy, ZeroCopySend)]
#[repr(C)]
struct Value(u64);

pub(super) fn start() -> Result<Peer> {
    let name = format!("overhear-bench-{}", std::process::id());
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let service = node
        .service_builder(&name.as_str().try_into()?)
        .publish_subscribe::<Value>()
        .subscriber_max_buffer_size(4096)
        .open_or_create()?;
    let publisher = service.publisher_builder().create()?;
    let (ready, started) = mpsc::channel();
    thread::Builder::new()
        .name("iceoryx2-drain".to_owned())
        .spawn(move || {
            let subscriber = service.subscriber_builder().buffer_size(4096).create();
            let Ok(subscriber) = subscriber else {
                let _ = ready.send(false);
                return;
            };
            let _ = ready.send(true);
            while subscriber.receive().is_ok() {
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
        node,
        move |elements| {
            for element in 0..elements {
                if let Ok(sample) = publisher.loan_uninit() {
                    let _ = sample.write_payload(Value(element)).send();
                }
            }
        },
    ))
}
