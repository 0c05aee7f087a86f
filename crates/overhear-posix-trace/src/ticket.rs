// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tickets for active streams: the system has `TRACE_SYS_MAX` of them.
//!
//! A ticket is an abstract name of a socket. The kernel binds a name to one socket at a time, in
//! all processes of a network namespace, and frees it when the process ends. No message is sent.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::area::SLOTS;
use crate::private_file::PrivateFile;
use crate::TraceError;

/// The right to have one active stream.
#[derive(Debug)]
pub(crate) struct Ticket(#[expect(dead_code, reason = "it is closed when dropped")] PrivateFile);

impl Ticket {
    /// Takes a free one.
    ///
    /// # Errors
    /// [`TraceError`] `EAGAIN` if there is none, or the process has no free descriptor for it.
    pub(crate) fn take() -> Result<Self, TraceError> {
        let refused = |errno: rustix::io::Errno| {
            TraceError::new(
                libc::EAGAIN,
                format!("the socket of a trace stream cannot be made ({errno}); close descriptors"),
            )
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
            .map_err(refused)?;
        for number in 0..SLOTS {
            let name = format!("overhear-posix-trace/{number}");
            let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(refused)?;
            if rustix::net::bind(&socket, &name).is_ok() {
                return Ok(Self(PrivateFile::new(socket)));
            }
        }
        Err(TraceError::new(
            libc::EAGAIN,
            format!(
                "the system has {SLOTS} active trace streams already (TRACE_SYS_MAX); shut one down"
            ),
        ))
    }
}
