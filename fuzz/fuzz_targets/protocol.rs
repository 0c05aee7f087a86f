// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arbitrary packets to a directory: it answers or closes, keeps its counts, and continues to
//! serve.
//!
//! The input is a conversation: packets, separated by zero bytes, which no JSON contains. `seeds`
//! has one of each kind.
#![no_main]

use std::sync::OnceLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use overhear_directory::{Directory, MonitorConnection};
use rustix::net::sockopt::{set_socket_timeout, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};

const QUOTA: u64 = 16 << 20;

fn directory() -> &'static Directory {
    static DIRECTORY: OnceLock<Directory> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let name = format!("overhear-fuzz-{}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&socket);
        let builder = Directory::builder().standalone().quota_bytes(QUOTA);
        builder.start(&socket).expect("a directory")
    })
}

fuzz_target!(|conversation: &[u8]| {
    let directory = directory();
    let fd = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("socket");
    // A directory that neither answers nor closes would hang here.
    set_socket_timeout(&fd, Timeout::Recv, Some(Duration::from_secs(30))).expect("a watchdog");
    let address = SocketAddrUnix::new(directory.socket()).expect("an address");
    rustix::net::connect(&fd, &address).expect("it listens");
    let mut answer = vec![0; 256 * 1024];
    for packet in conversation.split(|&byte| byte == 0).take(8) {
        if rustix::net::send(&fd, packet, SendFlags::NOSIGNAL).is_err() {
            break;
        }
        // A sensor and a monitor exist before; a read report of a monitor gets no answer.
        let _ = rustix::net::recv(&fd, &mut answer[..], RecvFlags::DONTWAIT);
    }
    drop(fd);
    // Others are served nevertheless, and the directory is within its bounds.
    let mut witness = MonitorConnection::connect(directory.socket()).expect("it listens");
    let status = witness.status().expect("it answers");
    assert!(status.bytes <= QUOTA, "{status:?}");
});
