// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared parts of the suites: a directory in this process, and a client that uses the protocol
//! directly, so that it can also break it.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod attempts;
pub mod mallory;
#[cfg(feature = "daemon")]
pub mod manager;
pub mod mutations;
#[cfg(feature = "daemon")]
pub mod users;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overhear_directory::client::{register_at, RegisterError, Registration, SensorRequest};
use overhear_directory::{monotonic_now, Directory, DirectoryBuilder};
use overhear_event::{
    ClockId, FieldKind, GapCause, Inbox, Nanos, Rate, Source, SourceError, StreamDescriptor,
    StreamId, Ticks, Timestamp, TypeSchema, WriterKind,
};
use overhear_stream::{read_hardware_ticks, SharedWords, SimpleWriter};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde_json::{json, Value};

/// A directory with a folder for its socket.
pub struct TestDirectory {
    pub directory: Directory,
    // Dropped after the directory.
    _folder: tempfile::TempDir,
}

impl TestDirectory {
    pub fn with(builder: DirectoryBuilder) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let directory = builder.start(&folder.path().join("directory.sock"));
        Self {
            directory: directory.unwrap(),
            _folder: folder,
        }
    }

    pub fn with_quota(bytes: u64) -> Self {
        Self::with(Directory::builder().quota_bytes(bytes))
    }

    /// A directory in the form of `overheard`: no thread of its process reads.
    pub fn standalone() -> Self {
        Self::with(Directory::builder().quota_bytes(64 << 20).standalone())
    }

    pub fn start() -> Self {
        Self::with_quota(64 << 20)
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.socket().to_path_buf()
    }

    /// A registration as programs make it. The client times out on a busy machine; that is no
    /// refusal, so it tries again.
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
        kind: WriterKind::Simple,
        lanes: 0,
    }
}

pub fn register_patiently(socket: &Path, sensor: &str) -> Result<Registration, RegisterError> {
    request_until_granted(socket, &request(sensor))
}

pub fn request_until_granted(
    socket: &Path,
    wanted: &SensorRequest,
) -> Result<Registration, RegisterError> {
    for _ in 0..100 {
        match register_at(socket, wanted.clone()) {
            Err(RegisterError::Unreachable { .. }) => {}
            result => return result,
        }
    }
    register_at(socket, wanted.clone())
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

/// Sends a packet with files, at most 80 of them; the other side may have closed already.
pub fn send_with_files(socket: impl AsFd, packet: &[u8], files: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(80))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)));
    let slices = [IoSlice::new(packet)];
    rustix::net::sendmsg(socket, &slices, &mut ancillary, SendFlags::NOSIGNAL).is_ok()
}

/// A connection that sends the given packets.
pub struct Raw(OwnedFd);

impl Raw {
    #[track_caller]
    pub fn connect(socket: &Path) -> Self {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let fd = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&fd, &SocketAddrUnix::new(socket).unwrap()).unwrap();
        Self::of(fd)
    }

    /// A connection that another part of the test has opened.
    #[track_caller]
    pub fn of(fd: OwnedFd) -> Self {
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
        send_with_files(&self.0, packet, files)
    }

    /// The next answer and the file with it; `Null` if the directory has closed.
    #[track_caller]
    pub fn receive(&self) -> (Value, Option<OwnedFd>) {
        let (answer, files) = self.receive_all();
        (answer, files.into_iter().next())
    }

    /// The next answer and all files with it.
    #[track_caller]
    pub fn receive_all(&self) -> (Value, Vec<OwnedFd>) {
        let mut packet = vec![0; 1 << 20];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(&mut packet)];
        // Other tests of this process start programs.
        let flags = RecvFlags::CMSG_CLOEXEC;
        let result = rustix::net::recvmsg(&self.0, slices, &mut ancillary, flags);
        let bytes = match result {
            Ok(message) => message.bytes,
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => panic!("the directory does not answer: {error}"),
        };
        let files = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(files) => Some(files),
                _ => None,
            })
            .flatten()
            .collect();
        if bytes == 0 {
            return (Value::Null, files);
        }
        (serde_json::from_slice(&packet[..bytes]).unwrap(), files)
    }

    /// Sends a packet and asserts that it is refused with these words.
    #[track_caller]
    pub fn is_refused(&self, packet: &Value, words: &[&str]) {
        assert!(self.send(packet));
        let (answer, file) = self.receive();
        let message = answer["refused"]["message"].as_str();
        let message = message.unwrap_or_else(|| panic!("not refused: {answer}"));
        assert!(file.is_none());
        for word in words {
            assert!(message.contains(word), "{word}: {message}");
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

/// Writes elements of `schema` with ascending numbers.
pub struct Writer {
    writer: SimpleWriter<SharedWords>,
    clock: ClockId,
    // Dropped after the writer that points into it.
    pub registration: Registration,
}

impl Writer {
    #[track_caller]
    pub fn new(registration: Registration) -> Self {
        // SAFETY: the registration, and with it the map, is kept next to the writer.
        let words = unsafe { registration.mapping.words() };
        let writer = SimpleWriter::new(words, *registration.shape.elements()).unwrap();
        let clock = registration.clock;
        Self {
            writer,
            clock,
            registration,
        }
    }

    pub fn write(&mut self, times: u64) {
        for _ in 0..times {
            self.write_number(self.writer.count());
        }
    }

    /// Writes one element with this number.
    pub fn write_number(&mut self, number: u64) {
        let mut payload = [0; 16];
        payload[..8].copy_from_slice(&number.to_ne_bytes());
        let clock = self.clock;
        self.writer.write(&payload, || match clock {
            ClockId::Monotonic => Ticks::from_raw(monotonic_now().as_monotonic_ns()),
            _ => read_hardware_ticks(),
        });
    }
}

/// Records the items of a source.
#[derive(Debug, Default)]
pub struct Received {
    pub opened: Vec<Arc<StreamDescriptor>>,
    pub closed: Vec<StreamId>,
    pub elements: u64,
    pub sequences: Vec<(StreamId, u64)>,
    pub payloads: Vec<Vec<u8>>,
    pub gaps: Vec<(StreamId, u64, u64, GapCause)>,
    pub complaints: Vec<String>,
}

impl Received {
    /// Polls until a condition holds; a watchdog ends tests whose condition never does.
    #[track_caller]
    pub fn until(&mut self, source: &mut impl Source, done: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        loop {
            source.poll(self).unwrap();
            if done(self) {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{self:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Inbox for Received {
    fn open(&mut self, descriptor: Arc<StreamDescriptor>) {
        self.opened.push(descriptor);
    }

    fn element(&mut self, stream: StreamId, sequence: u64, _: Timestamp, payload: &[u8]) {
        self.elements += 1;
        self.sequences.push((stream, sequence));
        self.payloads.push(payload.to_vec());
    }

    fn gap(&mut self, stream: StreamId, first: u64, missed: u64, cause: GapCause) {
        self.gaps.push((stream, first, missed, cause));
    }

    fn complain(&mut self, complaint: SourceError) {
        self.complaints.push(complaint.0);
    }

    fn close(&mut self, stream: StreamId) {
        self.closed.push(stream);
    }
}

/// Repeats a request until the answer is good; a watchdog ends tests whose answer never is.
#[track_caller]
pub fn eventually<T: std::fmt::Debug>(
    mut request: impl FnMut() -> T,
    good: impl Fn(&T) -> bool,
) -> T {
    let begun = Instant::now();
    loop {
        let answer = request();
        if good(&answer) {
            return answer;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{answer:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
