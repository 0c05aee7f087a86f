// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the suites share: a directory in this process, and a client that speaks the protocol by
//! hand, so that it can also speak it wrongly.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use overhear_directory::client::{register_at, RegisterError, Registration, SensorRequest};
use overhear_directory::Directory;
use overhear_event::{
    FieldKind, GapCause, Inbox, Nanos, Rate, StreamDescriptor, StreamId, Timestamp, TypeSchema,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};
use serde_json::{json, Value};

/// A directory with a folder for its socket.
pub struct Here {
    pub directory: Directory,
    // Dropped after the directory.
    _folder: tempfile::TempDir,
}

impl Here {
    pub fn with_quota(bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::builder()
            .quota_bytes(bytes)
            .start(&folder.path().join("directory.sock"))
            .unwrap();
        Self {
            directory,
            _folder: folder,
        }
    }

    pub fn start() -> Self {
        Self::with_quota(64 << 20)
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.socket().to_path_buf()
    }

    /// A registration as programs make it. The client loses patience where the machine is busy;
    /// that is no refusal, so it asks again.
    #[track_caller]
    pub fn register(&self, sensor: &str) -> Registration {
        register_patiently(self.directory.socket(), sensor).unwrap()
    }
}

pub fn schema() -> TypeSchema {
    TypeSchema::builder("sample")
        .field("number", FieldKind::U64, "")
        .field("load", FieldKind::F64, "%")
        .build()
        .unwrap()
}

/// A slow sensor: its buffer is the smallest there is.
pub fn request(sensor: &str) -> SensorRequest {
    let second = Nanos::from_ms(1_000);
    SensorRequest {
        sensor: sensor.to_owned(),
        instance: String::new(),
        schema: schema(),
        rate: Some(Rate::new(second, second, Nanos::ZERO).unwrap()),
        capacity: 0,
    }
}

pub fn register_patiently(socket: &Path, sensor: &str) -> Result<Registration, RegisterError> {
    for _ in 0..100 {
        match register_at(socket, request(sensor)) {
            Err(RegisterError::Unreachable { .. }) => {}
            result => return result,
        }
    }
    register_at(socket, request(sensor))
}

/// The packet that registers a sensor.
pub fn register_packet(sensor: &str) -> Value {
    let request = request(sensor);
    json!({ "register": {
        "version": 1,
        "sensor": request.sensor,
        "instance": request.instance,
        "schema": request.schema,
        "rate": request.rate,
        "capacity": request.capacity,
    } })
}

/// A connection that says what it is told to.
pub struct Raw(OwnedFd);

impl Raw {
    #[track_caller]
    pub fn connect(socket: &Path) -> Self {
        let fd = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        rustix::net::connect(&fd, &SocketAddrUnix::new(socket).unwrap()).unwrap();
        // A watchdog: the directory answers every packet or closes.
        let patience = Some(Duration::from_secs(30));
        rustix::net::sockopt::set_socket_timeout(
            &fd,
            rustix::net::sockopt::Timeout::Recv,
            patience,
        )
        .unwrap();
        Self(fd)
    }

    /// Sends a packet; the directory may have closed already.
    pub fn send_bytes(&self, packet: &[u8]) -> bool {
        rustix::net::send(&self.0, packet, SendFlags::NOSIGNAL).is_ok()
    }

    pub fn send(&self, packet: &Value) -> bool {
        self.send_bytes(packet.to_string().as_bytes())
    }

    pub fn send_with_files(&self, packet: &[u8], files: &[BorrowedFd<'_>]) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)));
        let slices = [IoSlice::new(packet)];
        rustix::net::sendmsg(&self.0, &slices, &mut ancillary, SendFlags::NOSIGNAL).is_ok()
    }

    /// The next answer and the file with it; `Null` if the directory has closed.
    #[track_caller]
    pub fn receive(&self) -> (Value, Option<OwnedFd>) {
        let mut packet = vec![0; 1 << 20];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(&mut packet)];
        let result = rustix::net::recvmsg(&self.0, slices, &mut ancillary, RecvFlags::empty());
        let bytes = match result {
            Ok(message) => message.bytes,
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => panic!("the directory does not answer: {error}"),
        };
        let file = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        if bytes == 0 {
            return (Value::Null, file);
        }
        (serde_json::from_slice(&packet[..bytes]).unwrap(), file)
    }

    /// Sends a packet and asserts that it is refused with these words.
    #[track_caller]
    pub fn is_refused(&self, packet: &Value, words: &[&str]) {
        assert!(self.send(packet));
        let (answer, file) = self.receive();
        let sentence = answer["refused"]["sentence"].as_str();
        let sentence = sentence.unwrap_or_else(|| panic!("not refused: {answer}"));
        assert!(file.is_none());
        for word in words {
            assert!(sentence.contains(word), "{word}: {sentence}");
        }
        assert_eq!(
            self.receive().0,
            Value::Null,
            "a refusal ends the conversation"
        );
    }
}

impl AsFd for Raw {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Remembers what a source says.
#[derive(Debug, Default)]
pub struct Heard {
    pub opened: Vec<Arc<StreamDescriptor>>,
    pub closed: Vec<StreamId>,
    pub elements: u64,
}

impl Inbox for Heard {
    fn open(&mut self, descriptor: Arc<StreamDescriptor>) {
        self.opened.push(descriptor);
    }

    fn element(&mut self, _: StreamId, _: u64, _: Timestamp, _: &[u8]) {
        self.elements += 1;
    }

    fn gap(&mut self, _: StreamId, _: u64, _: u64, _: GapCause) {}

    fn close(&mut self, stream: StreamId) {
        self.closed.push(stream);
    }
}
