// SPDX-License-Identifier: MIT OR Apache-2.0
//! The frames in which a reader process sends foreign messages.
//!
//! A frame is `{u32 bytes, u8 kind, body}`, all numbers little-endian. Names of events and fields
//! are sent once, in a frame of their own, and are indices from then on. The receiver trusts
//! nothing: the library in the sending process may have been taken over by the trace. A frame has
//! at most [`MAX_FRAME_BYTES`], and all names together [`MAX_NAMES_BYTES`].

use std::collections::HashMap;
use std::io;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use overhear_event::Timestamp;

use super::{ForeignError, ForeignEvent, ForeignFields, ForeignLoss, ForeignMessage, ForeignValue};

/// Size limit of a frame. Fields of an event beyond it are left out.
const MAX_FRAME_BYTES: usize = 1 << 20;
/// Size limit of a text. Longer texts are cut.
const MAX_TEXT_BYTES: usize = 4096;
/// Size limit of all names.
const MAX_NAMES_BYTES: usize = 16 << 20;
/// Maximum size of a field without a text in a frame: name, kind, number.
const FIELD_BYTES: usize = 4 + 1 + 8;

// Kinds of frames.
const NAME: u8 = 1;
const EVENT: u8 = 2;
const LOSS: u8 = 3;
const TIMELESS: u8 = 4;
const END: u8 = 5;
const ERROR: u8 = 6;

// Kinds of values.
const UNSIGNED: u8 = 0;
const SIGNED: u8 = 1;
const FRACTION: u8 = 2;
const TEXT: u8 = 3;

/// The longest prefix of a text with at most `most` bytes.
fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Writes frames.
#[derive(Debug)]
pub(super) struct FrameWriter<W> {
    out: W,
    names: HashMap<Arc<str>, u32>,
    names_bytes: usize,
    frame: Vec<u8>,
}

impl<W: Write> FrameWriter<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            names: HashMap::new(),
            names_bytes: 0,
            frame: Vec::new(),
        }
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn send(out: &mut W, kind: u8, body: &[u8]) -> io::Result<()> {
        let bytes = u32::try_from(body.len() + 1).map_err(io::Error::other)?;
        out.write_all(&bytes.to_le_bytes())?;
        out.write_all(&[kind])?;
        out.write_all(body)
    }

    /// Index of a name, which is sent if it is new.
    fn name(&mut self, name: &Arc<str>) -> io::Result<u32> {
        if let Some(&index) = self.names.get(name) {
            return Ok(index);
        }
        let text = cut(name, MAX_TEXT_BYTES);
        self.names_bytes += name.len().max(64);
        if self.names_bytes > MAX_NAMES_BYTES {
            return Err(io::Error::other(format!(
                "its names of events and fields have more than {MAX_NAMES_BYTES} bytes"
            )));
        }
        Self::send(&mut self.out, NAME, text.as_bytes())?;
        let index = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.insert(Arc::clone(name), index);
        Ok(index)
    }

    /// Appends the number of fields, and the fields that fit.
    fn fields(&mut self, fields: &ForeignFields) -> io::Result<()> {
        let count_at = self.frame.len();
        self.frame.extend([0; 4]);
        let mut count = 0_u32;
        for (name, value) in fields {
            let text_bytes = match value {
                ForeignValue::Text(text) => text.len().min(MAX_TEXT_BYTES),
                _ => 0,
            };
            // Room for the number of the remaining fields.
            if self.frame.len() + FIELD_BYTES + text_bytes + 8 > MAX_FRAME_BYTES {
                break;
            }
            let name = self.name(name)?;
            self.frame.extend(name.to_le_bytes());
            match value {
                ForeignValue::Whole(value) => {
                    match (u64::try_from(*value), i64::try_from(*value)) {
                        (Ok(value), _) => self.number(UNSIGNED, value.to_le_bytes()),
                        (_, Ok(value)) => self.number(SIGNED, value.to_le_bytes()),
                        // The library has no number with more bits.
                        _ => self.number(SIGNED, i64::MIN.to_le_bytes()),
                    }
                }
                ForeignValue::Fraction(value) => self.number(FRACTION, value.to_le_bytes()),
                ForeignValue::Text(text) => {
                    let text = cut(text, MAX_TEXT_BYTES).as_bytes();
                    self.frame.push(TEXT);
                    self.frame.extend((text.len() as u32).to_le_bytes());
                    self.frame.extend(text);
                }
            }
            count += 1;
        }
        self.frame[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
        Ok(())
    }

    fn number(&mut self, kind: u8, bytes: [u8; 8]) {
        self.frame.push(kind);
        self.frame.extend(bytes);
    }

    /// Sends a message.
    pub(super) fn message(&mut self, message: &ForeignMessage) -> io::Result<()> {
        self.frame.clear();
        let kind = match message {
            ForeignMessage::Event(event) => {
                let name = self.name(&event.name)?;
                self.frame
                    .extend(event.time.as_monotonic_ns().to_le_bytes());
                self.frame.extend(name.to_le_bytes());
                self.fields(&event.context)?;
                self.fields(&event.payload)?;
                EVENT
            }
            ForeignMessage::Loss(loss) => {
                for time in [loss.from, loss.to] {
                    self.frame.push(u8::from(time.is_some()));
                    let ns = time.map_or(0, Timestamp::as_monotonic_ns);
                    self.frame.extend(ns.to_le_bytes());
                }
                self.frame.extend(loss.events.to_le_bytes());
                self.frame.push(u8::from(loss.at_least));
                LOSS
            }
            ForeignMessage::Timeless => TIMELESS,
        };
        Self::send(&mut self.out, kind, &self.frame)
    }

    /// Sends the result of the reading: the end of the trace, or an error.
    pub(super) fn result(&mut self, result: Result<(), &ForeignError>) -> io::Result<()> {
        match result {
            Ok(()) => Self::send(&mut self.out, END, &[]),
            Err(error) => {
                let (kind, path, reason) = match error {
                    ForeignError::Library { reason } => (0, None, reason.as_str()),
                    ForeignError::NoTrace { path } => (1, Some(path), ""),
                    ForeignError::Unreadable { path, reason }
                    | ForeignError::Reader { path, reason } => (2, Some(path), reason.as_str()),
                };
                let path = path.map_or("", |path| path.to_str().unwrap_or_default());
                let path = cut(path, MAX_TEXT_BYTES);
                self.frame.clear();
                self.frame.push(kind);
                self.frame.extend((path.len() as u32).to_le_bytes());
                self.frame.extend(path.as_bytes());
                self.frame.extend(cut(reason, MAX_TEXT_BYTES).as_bytes());
                Self::send(&mut self.out, ERROR, &self.frame)
            }
        }?;
        self.out.flush()
    }
}

/// The content of a frame.
#[derive(Debug)]
pub(super) enum Received {
    Message(ForeignMessage),
    /// The reading has ended.
    Result(Result<(), ForeignError>),
}

/// Reads frames.
#[derive(Debug)]
pub(super) struct FrameReader<R> {
    input: R,
    names: Vec<Arc<str>>,
    names_bytes: usize,
    frame_untrusted: Vec<u8>,
}

impl<R: Read> FrameReader<R> {
    pub(super) fn new(input: R) -> Self {
        Self {
            input,
            names: Vec::new(),
            names_bytes: 0,
            frame_untrusted: Vec::new(),
        }
    }

    pub(super) const fn input(&self) -> &R {
        &self.input
    }

    /// The next message, or the result.
    ///
    /// # Errors
    /// `UnexpectedEof` if the frames end without a result, `InvalidData` if a frame is malformed,
    /// and errors of the input.
    pub(super) fn next(&mut self) -> io::Result<Received> {
        loop {
            let mut head = [0; 5];
            self.input.read_exact(&mut head)?;
            let [a, b, c, d, kind] = head;
            let bytes = u32::from_le_bytes([a, b, c, d]) as usize;
            if !(1..=MAX_FRAME_BYTES + 1).contains(&bytes) {
                return Err(malformed());
            }
            self.frame_untrusted.resize(bytes - 1, 0);
            self.input.read_exact(&mut self.frame_untrusted)?;
            let mut body = Body(&self.frame_untrusted);
            match kind {
                NAME => {
                    self.names_bytes += body.0.len().max(64);
                    if self.names_bytes > MAX_NAMES_BYTES {
                        return Err(malformed());
                    }
                    self.names.push(String::from_utf8_lossy(body.0).into());
                    continue;
                }
                EVENT => {
                    let time = Timestamp::from_monotonic_ns(body.u64()?);
                    let name = body.name(&self.names)?;
                    let context = body.fields(&self.names)?;
                    let payload = body.fields(&self.names)?;
                    return Ok(Received::Message(ForeignMessage::Event(ForeignEvent {
                        time,
                        name,
                        context,
                        payload,
                    })));
                }
                LOSS => {
                    let (from, to) = (body.time()?, body.time()?);
                    return Ok(Received::Message(ForeignMessage::Loss(ForeignLoss {
                        from,
                        to,
                        events: body.u64()?,
                        at_least: body.u8()? != 0,
                    })));
                }
                TIMELESS => return Ok(Received::Message(ForeignMessage::Timeless)),
                END => return Ok(Received::Result(Ok(()))),
                ERROR => return Ok(Received::Result(Err(body.error()?))),
                _ => return Err(malformed()),
            }
        }
    }
}

fn malformed() -> io::Error {
    io::Error::from(io::ErrorKind::InvalidData)
}

/// The rest of a frame.
struct Body<'a>(&'a [u8]);

impl Body<'_> {
    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or_else(malformed)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u8(&mut self) -> io::Result<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> io::Result<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> io::Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn time(&mut self) -> io::Result<Option<Timestamp>> {
        let is_known = self.u8()? != 0;
        let ns = self.u64()?;
        Ok(is_known.then(|| Timestamp::from_monotonic_ns(ns)))
    }

    fn text(&mut self, bytes: usize) -> io::Result<String> {
        let (text, rest) = self.0.split_at_checked(bytes).ok_or_else(malformed)?;
        self.0 = rest;
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    fn name(&mut self, names: &[Arc<str>]) -> io::Result<Arc<str>> {
        let index = self.u32()? as usize;
        names.get(index).map(Arc::clone).ok_or_else(malformed)
    }

    fn fields(&mut self, names: &[Arc<str>]) -> io::Result<ForeignFields> {
        let count = self.u32()? as usize;
        // Each has a name and a kind at least.
        let mut fields = ForeignFields::with_capacity(count.min(self.0.len() / 5));
        for _ in 0..count {
            let name = self.name(names)?;
            let value = match self.u8()? {
                UNSIGNED => ForeignValue::Whole(self.u64()?.into()),
                SIGNED => ForeignValue::Whole(i64::from_le_bytes(self.take()?).into()),
                FRACTION => ForeignValue::Fraction(f64::from_le_bytes(self.take()?)),
                TEXT => {
                    let bytes = self.u32()? as usize;
                    ForeignValue::Text(self.text(bytes)?)
                }
                _ => return Err(malformed()),
            };
            fields.push((name, value));
        }
        Ok(fields)
    }

    fn error(&mut self) -> io::Result<ForeignError> {
        let kind = self.u8()?;
        let bytes = self.u32()? as usize;
        let path = PathBuf::from(self.text(bytes)?);
        let reason = self.text(self.0.len())?;
        Ok(match kind {
            0 => ForeignError::Library { reason },
            1 => ForeignError::NoTrace { path },
            _ => ForeignError::Unreadable { path, reason },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;
    use std::sync::Arc;

    use overhear_event::Timestamp;

    use super::{FrameReader, FrameWriter, Received, MAX_FRAME_BYTES, MAX_TEXT_BYTES};
    use crate::foreign::{ForeignError, ForeignEvent, ForeignLoss, ForeignMessage, ForeignValue};

    fn at(ns: u64) -> Timestamp {
        Timestamp::from_monotonic_ns(ns)
    }

    fn event(payload: Vec<(Arc<str>, ForeignValue)>) -> ForeignMessage {
        ForeignMessage::Event(ForeignEvent {
            time: at(17),
            name: "app:request".into(),
            context: vec![("cpu_id".into(), ForeignValue::Whole(3))],
            payload,
        })
    }

    /// The messages that a receiver gets.
    fn passed(messages: &[ForeignMessage]) -> Vec<ForeignMessage> {
        let mut bytes = Vec::new();
        let mut writer = FrameWriter::new(&mut bytes);
        for message in messages {
            writer.message(message).unwrap();
        }
        writer.result(Ok(())).unwrap();
        let mut reader = FrameReader::new(&bytes[..]);
        let mut received = Vec::new();
        loop {
            match reader.next().unwrap() {
                Received::Message(message) => received.push(message),
                Received::Result(result) => {
                    result.unwrap();
                    return received;
                }
            }
        }
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let messages = [
            event(vec![
                ("a".into(), ForeignValue::Whole(u64::MAX.into())),
                ("b".into(), ForeignValue::Whole(i64::MIN.into())),
                ("a".into(), ForeignValue::Fraction(0.5)),
                ("c".into(), ForeignValue::Text("\u{e9}\n".to_owned())),
            ]),
            ForeignMessage::Timeless,
            ForeignMessage::Loss(ForeignLoss {
                from: Some(at(1)),
                to: None,
                events: 5,
                at_least: true,
            }),
            event(Vec::new()),
        ];
        assert_eq!(passed(&messages), messages);
    }

    #[test]
    fn long_texts_and_many_fields_are_cut() {
        let long = ForeignValue::Text("\u{e9}".repeat(MAX_TEXT_BYTES));
        let fields = vec![(Arc::from("text"), long); 300];
        let [ForeignMessage::Event(event)] = &passed(&[event(fields)])[..] else {
            panic!("no event");
        };
        let text = ForeignValue::Text("\u{e9}".repeat(MAX_TEXT_BYTES / 2));
        assert_eq!(event.payload[0].1, text);
        assert_eq!(
            event.payload.len(),
            (MAX_FRAME_BYTES - 64) / (MAX_TEXT_BYTES + 9)
        );
    }

    #[test]
    fn errors_arrive_as_they_were_sent() {
        let path = PathBuf::from("/trace");
        let reason = "no magic".to_owned();
        for error in [
            ForeignError::Library {
                reason: reason.clone(),
            },
            ForeignError::NoTrace { path: path.clone() },
            ForeignError::Unreadable { path, reason },
        ] {
            let mut bytes = Vec::new();
            FrameWriter::new(&mut bytes).result(Err(&error)).unwrap();
            match FrameReader::new(&bytes[..]).next().unwrap() {
                Received::Result(Err(received)) => {
                    assert_eq!(received.to_string(), error.to_string());
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn malformed_frames_are_refused_without_memory() {
        let huge = u32::MAX.to_le_bytes();
        let field_count = [&[20, 0, 0, 0, 2][..], &[0; 8], &[9; 4], &huge].concat();
        let cases: [(&[u8], io::ErrorKind); 6] = [
            (&[], io::ErrorKind::UnexpectedEof),
            (&[1, 0, 0, 0], io::ErrorKind::UnexpectedEof),
            (&[0, 0, 0, 0, 5], io::ErrorKind::InvalidData),
            (&[255, 255, 255, 255, 2], io::ErrorKind::InvalidData),
            (&[1, 0, 0, 0, 99], io::ErrorKind::InvalidData),
            (&field_count, io::ErrorKind::UnexpectedEof),
        ];
        for (bytes, kind) in cases {
            let error = FrameReader::new(bytes).next().unwrap_err();
            assert_eq!(error.kind(), kind, "{bytes:?}");
        }
        // A number of fields that the frame has no room for.
        let mut frames = Vec::new();
        FrameWriter::new(&mut frames)
            .message(&event(Vec::new()))
            .unwrap();
        let end = frames.len();
        frames[end - 4..].copy_from_slice(&huge);
        let error = FrameReader::new(&frames[..]).next().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
