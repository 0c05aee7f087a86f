// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user at the other end of a connection over the loopback address, by the kernel's socket
//! diagnosis (`sock_diag`), which needs no privilege.

use std::io;
use std::net::{SocketAddr, SocketAddrV4, TcpStream};

use rustix::net::netlink::{SocketAddrNetlink, SOCK_DIAG};
use rustix::net::{
    recv, sendto, socket_with, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
};

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
const AF_INET: u8 = 2;
const IPPROTO_TCP: u8 = 6;
/// Bytes of `struct nlmsghdr` and of `struct inet_diag_req_v2`.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = 56;
/// Offset of `idiag_uid` in `struct inet_diag_msg`: it comes after 4 bytes, the socket's id, and
/// three words.
const UID_AT: usize = HEADER_BYTES + 4 + 48 + 12;

/// The user that created the socket at the other end; `None` if the kernel does not provide it.
pub(super) fn uid_of(stream: &TcpStream) -> Option<u32> {
    let (SocketAddr::V4(theirs), SocketAddr::V4(ours)) =
        (stream.peer_addr().ok()?, stream.local_addr().ok()?)
    else {
        return None;
    };
    request_owner(theirs, ours).ok().flatten()
}

/// The owner of the socket that is bound to `own` and connected to `other`.
fn request_owner(own: SocketAddrV4, other: SocketAddrV4) -> io::Result<Option<u32>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        flags,
        Some(SOCK_DIAG),
    )?;
    let mut request = Vec::with_capacity(HEADER_BYTES + REQUEST_BYTES);
    // struct nlmsghdr: length, type, NLM_F_REQUEST, sequence, port.
    request.extend(((HEADER_BYTES + REQUEST_BYTES) as u32).to_ne_bytes());
    request.extend(BY_FAMILY.to_ne_bytes());
    request.extend(1_u16.to_ne_bytes());
    request.extend([0; 8]);
    // struct inet_diag_req_v2: family, protocol, no extensions, any state.
    request.extend([AF_INET, IPPROTO_TCP, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes());
    // struct inet_diag_sockid, in network order: ports, addresses, any interface, no cookie.
    request.extend(own.port().to_be_bytes());
    request.extend(other.port().to_be_bytes());
    for address in [own, other] {
        request.extend(address.ip().octets());
        request.extend([0; 12]);
    }
    request.extend([0; 4]);
    request.extend([0xff; 8]);
    sendto(
        &socket,
        &request,
        SendFlags::empty(),
        &SocketAddrNetlink::new(0, 0),
    )?;
    let mut answer = [0_u8; 4096];
    // The kernel replies before `sendto` returns.
    let (length, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    Ok(uid_in(&answer[..length]))
}

fn uid_in(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let uid = answer.get(UID_AT..UID_AT + 4)?;
    (kind == BY_FAMILY).then(|| u32::from_ne_bytes(uid.try_into().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::uid_of;

    #[test]
    fn peer_is_this_user() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (served, _) = listener.accept().unwrap();
        let Some(uid) = uid_of(&served) else {
            println!("skipped: this kernel has no socket diagnosis");
            return;
        };
        assert_eq!(uid, rustix::process::geteuid().as_raw());
    }
}
