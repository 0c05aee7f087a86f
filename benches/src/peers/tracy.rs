// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracy: a plotted number, connected and drained.
//!
//! Tracy's client sends what it records to a profiler; until one connects, its queue grows. The
//! listener here says the protocol's first words and throws away what comes.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use tracy_client::{plot_name, Client};

use super::Peer;

/// Of Tracy 0.13 and 0.14, which the crate contains; another one refuses, and is left out.
const PROTOCOL_VERSION: u32 = 82;
const WELCOME: u8 = 1;
const PORTS: std::ops::Range<u16> = 8086..8096;
/// How long its answer may take.
const ANSWER: Duration = Duration::from_secs(5);

/// Tracy's thread ends only after its listener has gone.
struct Connection(TcpStream);

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

pub(super) fn start() -> Result<Peer> {
    let client = Client::start();
    let mut profiler = connect()?;
    profiler.write_all(b"TracyPrf")?;
    profiler.write_all(&PROTOCOL_VERSION.to_le_bytes())?;
    let mut status = [0];
    // A client of another program on the same port, which is connected already, never answers.
    profiler.set_read_timeout(Some(ANSWER))?;
    profiler
        .read_exact(&mut status)
        .context("the client does not answer: does another program use Tracy?")?;
    profiler.set_read_timeout(None)?;
    ensure!(
        status == [WELCOME],
        "the client refuses protocol version {PROTOCOL_VERSION}"
    );
    let connection = Connection(profiler.try_clone()?);
    let drain = thread::Builder::new().name("tracy-drain".to_owned());
    drain.spawn(move || {
        let mut frame = vec![0; 1 << 20];
        while profiler.read(&mut frame).is_ok_and(|bytes| bytes > 0) {}
    })?;
    let events = client.clone();
    Ok(Peer::new("Tracy plot", 1000, connection, move |elements| {
        plot(&events, elements);
    }))
}

#[inline(never)]
fn plot(client: &Client, elements: u64) {
    for element in 0..elements {
        client.plot(plot_name!("value"), element as f64);
    }
}

fn connect() -> Result<TcpStream> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        for port in PORTS {
            if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
                stream
                    .set_read_timeout(None)
                    .context("the connection to Tracy's client is gone")?;
                return Ok(stream);
            }
        }
        if Instant::now() > end {
            bail!("its client does not listen at any port of {PORTS:?}");
        }
        thread::sleep(Duration::from_millis(50));
    }
}
