// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server: one page, and its news.
//!
//! Plain HTTP without a library, because nothing more is needed: two addresses that answer GET, and
//! each connection is closed after its answer. Each connection has a thread; there are few of them
//! ([`Connections`] bounds them), and a whole request must arrive within [`REQUEST_TIME`].

use std::fmt::Write as _;
use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::connections::{ConnectionId, Connections};
use super::feed::{News, Reader};
use super::peer::uid_of;
use super::request::{behind_token, read, Request};
use super::{cannot, Feed};
use overhear_session::error::SessionError;

/// Maximum time until a request has arrived as a whole, even if its bytes come slowly.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// A browser that does not read for this time has gone.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time between two pieces of news.
const PACE: Duration = Duration::from_millis(200);

/// The page to serve.
#[derive(Debug)]
pub enum Content {
    /// A finished page.
    Page(String),
    /// A page that requests news.
    Live {
        /// The page.
        page: String,
        /// Source of the news.
        feed: Feed,
    },
}

/// A server; it ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    site: Arc<Site>,
}

#[derive(Debug)]
struct Site {
    content: Content,
    token: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    connections: Connections<TcpStream>,
    is_over: bool,
}

impl Server {
    /// Listens on the loopback address.
    ///
    /// # Errors
    /// [`SessionError`] if the server cannot listen.
    pub fn start(content: Content) -> Result<Self, SessionError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .map_err(|error| cannot("listen on the loopback address", &error))?;
        let address = listener
            .local_addr()
            .map_err(|error| cannot("find the address of the page", &error))?;
        let site = Arc::new(Site {
            content,
            token: token().map_err(|error| cannot("draw a token", &error))?,
            state: Mutex::default(),
        });
        let served = Arc::clone(&site);
        thread::Builder::new()
            .name("view".to_string())
            .spawn(move || accept(&listener, address, &served))
            .map_err(|error| cannot("start the server", &error))?;
        Ok(Self { address, site })
    }

    /// The address for a browser. The address alone gives access.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/{}/", self.address, self.site.token)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.site.state().is_over = true;
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}

impl Site {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.state().is_over
    }
}

/// 128 random bits.
fn token() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled +=
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

fn accept(listener: &TcpListener, address: SocketAddr, site: &Arc<Site>) {
    for stream in listener.incoming() {
        if site.is_over() {
            return;
        }
        // A connection that breaks at once needs no answer.
        let Ok(stream) = stream else { continue };
        let Ok(handle) = stream.try_clone() else {
            continue;
        };
        let (id, evicted) = site.state().connections.admit(uid_of(&stream), handle);
        if let Some(evicted) = evicted {
            // Its thread then reads the end of its input.
            let _ = evicted.shutdown(Shutdown::Both);
        }
        let of = Arc::clone(site);
        let spawned = thread::Builder::new()
            .name("view-page".to_string())
            .spawn(move || {
                // A browser that goes away in the middle is no error.
                let _ = answer(&stream, id, address, &of);
                of.state().connections.end(id);
            });
        if spawned.is_err() {
            site.state().connections.end(id);
        }
    }
}

/// A connection with a deadline: a byte now and then does not keep it open.
struct Until<'a> {
    stream: &'a TcpStream,
    end: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

fn answer(
    stream: &TcpStream,
    id: ConnectionId,
    address: SocketAddr,
    site: &Site,
) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let end = Instant::now() + REQUEST_TIME;
    let Some(request) = read(BufReader::new(Until { stream, end }))? else {
        return reply(
            stream,
            "400 Bad Request",
            "text/plain",
            "this is no request\n",
        );
    };
    // A host name of another site that resolves to this address means that a foreign page tries to
    // read this one.
    if !is_ours(&request, address) {
        return reply(
            stream,
            "403 Forbidden",
            "text/plain",
            "this host is unknown\n",
        );
    }
    let Some(page) = behind_token(&request.path, &site.token) else {
        return reply(
            stream,
            "403 Forbidden",
            "text/plain",
            "the address lacks its token: take it from the terminal\n",
        );
    };
    if !site.state().connections.authenticate(id) {
        let message = "too many pages are open at this address; close one\n";
        return reply(stream, "503 Service Unavailable", "text/plain", message);
    }
    if request.method != "GET" {
        return reply(stream, "405 Method Not Allowed", "text/plain", "only GET\n");
    }
    match (page, &site.content) {
        ("", Content::Page(page) | Content::Live { page, .. }) => {
            reply(stream, "200 OK", "text/html; charset=utf-8", page)
        }
        ("events", Content::Live { feed, .. }) => stream_news(stream, feed, site),
        _ => reply(
            stream,
            "404 Not Found",
            "text/plain",
            "there is nothing here\n",
        ),
    }
}

fn is_ours(request: &Request, address: SocketAddr) -> bool {
    let port = address.port();
    request.host == address.to_string() || request.host == format!("localhost:{port}")
}

const HEADERS: &str = "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
    Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
    X-Frame-Options: DENY\r\nConnection: close\r\n";

fn reply(mut stream: &TcpStream, status: &str, kind: &str, body: &str) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{HEADERS}\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Sends news until the run or the server ends: server-sent events, one JSON text each.
fn stream_news(mut stream: &TcpStream, feed: &Feed, site: &Site) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{HEADERS}\r\n");
    stream.write_all(head.as_bytes())?;
    let mut reader = Reader::default();
    while !site.is_over() {
        match feed.news(&mut reader) {
            News::Again => return stream.write_all(b"event: again\ndata: {}\n\n"),
            News::Piece { json, last, more } => {
                stream.write_all(format!("data: {json}\n\n").as_bytes())?;
                if last {
                    return Ok(());
                }
                if !more {
                    feed.wait(PACE);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::{read, Until};

    #[test]
    fn bytes_that_keep_coming_do_not_prolong_a_request() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        // Sends until the other end is closed, which happens only if the server rejects the
        // request.
        let sending = std::thread::spawn(move || {
            client.write_all(b"GET / HTTP/1.1\r\n").unwrap();
            while client.write_all(b"a").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let end = Instant::now() + Duration::from_millis(200);
        let request = read(BufReader::new(Until {
            stream: &stream,
            end,
        }));
        assert!(request.is_err(), "{request:?}");
        drop(stream);
        sending.join().unwrap();
    }
}
