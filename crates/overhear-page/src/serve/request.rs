// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests of a browser: the small part of HTTP that is needed, read with bounds.

use std::io::{self, BufRead};

/// Maximum length of the head of a request: browsers send a kilobyte or two.
const MOST_BYTES: u64 = 16 * 1024;

/// The head of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) host: String,
}

/// Reads the head of a request; `None` if it is not valid.
pub(super) fn read(from: impl BufRead) -> io::Result<Option<Request>> {
    let mut lines = from.take(MOST_BYTES).lines();
    let Some(first) = lines.next().transpose()? else {
        return Ok(None);
    };
    let mut words = first.split(' ');
    let (Some(method), Some(path), Some(version)) = (words.next(), words.next(), words.next())
    else {
        return Ok(None);
    };
    if !version.starts_with("HTTP/1.") {
        return Ok(None);
    }
    let mut host = String::new();
    for line in lines {
        let line = line?;
        if line.is_empty() {
            return Ok(Some(Request {
                method: method.to_string(),
                path: path.to_string(),
                host,
            }));
        }
        if let Some((name, value)) = line.split_once(':') {
            if name.eq_ignore_ascii_case("host") {
                host = value.trim().to_string();
            }
        }
    }
    // The head is incomplete or too long.
    Ok(None)
}

/// The rest of `path` after the token; `None` if it does not begin with it. The comparison takes
/// the same time for a wrong token as for the right one: an attacker must not measure the length of
/// a right prefix.
pub(super) fn behind_token<'a>(path: &'a str, token: &str) -> Option<&'a str> {
    let (given, rest) = path.strip_prefix('/')?.split_once('/')?;
    if given.len() != token.len() {
        return None;
    }
    let pairs = given.bytes().zip(token.bytes());
    let difference = pairs.fold(0, |all, (a, b)| all | (a ^ b));
    (std::hint::black_box(difference) == 0).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::{behind_token, read, Request};

    #[test]
    fn heads_are_read_and_what_is_none_is_refused() {
        let head = b"GET /x/ HTTP/1.1\r\nhOST: 127.0.0.1:80 \r\nA: b\r\n\r\nbody";
        let request = read(head.as_slice()).unwrap().unwrap();
        let expected = Request {
            method: "GET".to_string(),
            path: "/x/".to_string(),
            host: "127.0.0.1:80".to_string(),
        };
        assert_eq!(request, expected);
        let long = [b"GET / HTTP/1.1\r\nA: ".as_slice(), &[b'x'; 20_000]].concat();
        for bad in [
            &b""[..],
            b"\r\n\r\n",
            b"GET /\r\n\r\n",
            b"GET / HTTP/1.1\r\n",
            b"GET / SPDY/3\r\n\r\n",
            &long,
        ] {
            assert_eq!(read(bad).unwrap(), None);
        }
        assert!(read(&b"\xff\xfe / HTTP/1.1\r\n\r\n"[..]).is_err());
    }

    #[test]
    fn only_the_whole_token_opens() {
        assert_eq!(behind_token("/abc/", "abc"), Some(""));
        assert_eq!(behind_token("/abc/events", "abc"), Some("events"));
        for path in ["/", "/abc", "/abd/", "/ab/", "/abcd/", "abc/", "//abc/", ""] {
            assert_eq!(behind_token(path, "abc"), None, "{path}");
        }
    }
}
