// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracy: a plotted number, connected and drained.
//!
//! Tracy's client sends what it records to a profiler; until one connects, its queue grows. The
//! receiver here performs the handshake of the protocol and discards the data.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};
use tracy_client::{plot_name, Client};

use super::Peer;
use crate::processes::TRACY_PORT;

/// The version of Tracy 0.13 and 0.14, which the crate contains. Another version refuses it, and is
/// omitted.
const PROTOCOL_VERSION: u32 = 82;
const WELCOME: u8 = 1;
const OTHER_VERSION: u8 = 2;
/// The first port that a client tries, unless the environment names another one.
const FIRST_PORT: u16 = 8086;
/// Number of ports that a client tries.
const PORTS: u16 = 10;
/// Timeout of its answer.
const ANSWER: Duration = Duration::from_secs(2);

/// Tracy's thread ends only after its receiver has gone.
struct Connection(TcpStream);

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

pub(super) fn start() -> Result<Peer> {
    let client = Client::start();
    let mut profiler = connect()?;
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

/// The client's connection, after its welcome message. Another message comes from a process that is
/// ending, or that has its profiler already: then the next port is tried, and all of them again.
fn connect() -> Result<TcpStream> {
    let named = std::env::var(TRACY_PORT).ok();
    let first = named.and_then(|port| port.parse().ok());
    let first = first.unwrap_or(FIRST_PORT);
    let ports = first..first.saturating_add(PORTS);
    let end = Instant::now() + Duration::from_secs(10);
    let mut answers = String::new();
    loop {
        for port in ports.clone() {
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
                continue;
            };
            match welcome(&mut stream) {
                Ok(WELCOME) => return Ok(stream),
                Ok(OTHER_VERSION) => {
                    bail!("the client refuses protocol version {PROTOCOL_VERSION}")
                }
                Ok(status) => answers = format!("the client at port {port} reports {status}"),
                Err(error) => {
                    answers = format!("the client at port {port} does not answer: {error}")
                }
            }
        }
        if Instant::now() > end {
            bail!("no client welcomes a profiler at the ports {ports:?}; {answers}");
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Performs the handshake of the protocol.
fn welcome(stream: &mut TcpStream) -> std::io::Result<u8> {
    stream.write_all(b"TracyPrf")?;
    stream.write_all(&PROTOCOL_VERSION.to_le_bytes())?;
    let mut status = [0];
    stream.set_read_timeout(Some(ANSWER))?;
    stream.read_exact(&mut status)?;
    stream.set_read_timeout(None)?;
    Ok(status[0])
}
