// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory's state, kept for the next directory: a journal in a memory file.
//!
//! The service manager stores the files of a directory that runs as a service: a file per sensor,
//! the control pages, the clock page, and this journal, which describes them. After a kill the next
//! directory gets all of them back.
//!
//! # Rules
//!
//! 1. A file is stored before the journal has a line about it. A file without a line is closed at
//!    the next start; a line without a file is skipped.
//! 2. An entry is a line of JSON and is whole if its line break is there: a directory can die at
//!    any byte of it.
//! 3. A journal begins with a snapshot of the state and the entry `whole`; then it is stored. When
//!    it has grown enough, a new journal replaces it. Of several, the one with the greatest number
//!    that has its `whole` is valid.
//! 4. The new journal is written in slices while the old one is still in use. An entry that comes
//!    in between goes into both. Slices see the state after such an entry, and an entry about an
//!    object that a journal does not have yet changes nothing: so the order of slices and entries
//!    does not matter.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use overhear_event::{ClockId, StreamDescriptor, StreamId, Task, WriterKind};
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};

use crate::file_watch::WatchId;
use crate::sensor_record::SensorState;
use crate::trace_area::AreaId;

/// The version of the journal. A journal of another version is ignored.
pub(crate) const VERSION: u32 = 2;
/// A journal is rewritten after it has grown by these bytes, and by its own initial length.
const MIN_GROWTH_BYTES: u64 = 1 << 20;

/// A store in which files outlive the directory's process. Names are short, because the service
/// manager passes all of them in one environment variable.
pub(crate) trait Store: Send + std::fmt::Debug {
    /// Stores a file under a name.
    fn keep(&self, name: &str, file: BorrowedFd<'_>) -> io::Result<()>;
    /// Removes the file with this name.
    fn forget(&self, name: &str);
}

/// A stored file and its name.
pub(crate) type KeptFile = (String, OwnedFd);

/// A change of the directory's state.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Entry {
    Directory {
        version: u32,
        identity: u64,
        clock: ClockId,
        restarts: u64,
        freed_unread: u64,
        #[serde(alias = "unheard")]
        not_connected: u64,
    },
    /// The start of the search for a free stream number.
    Next {
        stream: u32,
    },
    Page {
        pid: u32,
        /// The user that is charged for it.
        uid: u32,
        index: usize,
        name: String,
    },
    /// A user is charged for a file for as long as the watch with this number exists.
    Charged {
        watch: i32,
        uid: u32,
        bytes: u64,
        sensors: u64,
        record_bytes: u64,
        deferred: u64,
    },
    Sensor(Box<KeptSensor>),
    /// End of the snapshot at the start of a journal.
    Whole,
    Ended {
        stream: u32,
        state: SensorState,
    },
    Freed {
        stream: u32,
        unread: bool,
    },
    /// A monitor has read a sensor to its end.
    Read {
        stream: u32,
    },
    /// Total of requests for sensors that were refused or deferred, over all restarts.
    #[serde(alias = "unheard")]
    NotConnected {
        count: u64,
    },
    /// Whether a sensor is off only because no monitor needs it (`switching`, rule 1).
    #[serde(alias = "spared")]
    AutoDisabled {
        stream: u32,
        #[serde(alias = "spared")]
        auto_disabled: bool,
    },
    TaskGone {
        pid: u32,
    },
    /// A trace area; its members follow.
    Area {
        area: u64,
        uid: u32,
    },
    /// A process records into a trace area.
    AreaMember {
        area: u64,
        task: Task,
    },
    /// It has ended, or has another area.
    AreaLeft {
        area: u64,
        pid: u32,
    },
    AreaClosed {
        area: u64,
    },
}

/// A sensor's record for the next directory.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptSensor {
    pub(crate) descriptor: StreamDescriptor,
    pub(crate) kind: WriterKind,
    pub(crate) lanes: u32,
    pub(crate) clock: ClockId,
    pub(crate) token: u64,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) state: SensorState,
    pub(crate) was_read: bool,
    #[serde(default, alias = "spared")]
    pub(crate) auto_disabled: bool,
    /// Control page and line; `None` once the sensor is not live.
    #[serde(alias = "place")]
    pub(crate) slot: Option<(usize, u32)>,
    /// The watch on its file, of a deferred sensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) deferred: Option<i32>,
}

/// The position of a snapshot in the registry: per kind, the least key that is still to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotCursor {
    pub(crate) charge: WatchId,
    pub(crate) task: u32,
    pub(crate) sensor: StreamId,
    pub(crate) deferred: StreamId,
    pub(crate) area: AreaId,
}

impl Default for SnapshotCursor {
    fn default() -> Self {
        Self {
            charge: WatchId::from_raw(0),
            task: 0,
            sensor: StreamId::from_raw(0),
            deferred: StreamId::from_raw(0),
            area: AreaId::default(),
        }
    }
}

/// The journal of this directory, and the store whose files it describes.
#[derive(Debug)]
pub(crate) struct Journal {
    store: Box<dyn Store>,
    file: JournalFile,
    number: u64,
    // Bytes up to and including `whole`.
    begun: u64,
    // The journal that will replace it, while it is written.
    next: Option<JournalFile>,
    pages: u64,
    failure: Option<String>,
}

/// A journal's memory file.
#[derive(Debug)]
struct JournalFile {
    file: File,
    bytes: u64,
}

impl JournalFile {
    fn new() -> io::Result<Self> {
        let file = rustix::fs::memfd_create("overhear-journal", MemfdFlags::CLOEXEC)?;
        let file = File::from(file);
        Ok(Self { file, bytes: 0 })
    }

    /// Appends whole lines.
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        self.file.write_all_at(lines, self.bytes)?;
        self.bytes += lines.len() as u64;
        Ok(())
    }
}

impl Journal {
    /// Starts the journal `number`. `pages` is the greatest number of a control page so far.
    pub(crate) fn begin(
        store: Box<dyn Store>,
        number: u64,
        pages: u64,
        entries: impl Iterator<Item = Entry>,
    ) -> io::Result<Self> {
        let mut journal = Self {
            store,
            file: JournalFile::new()?,
            number,
            begun: 0,
            next: None,
            pages,
            failure: None,
        };
        journal
            .file
            .append(&lines(entries.chain([Entry::Whole]))?)?;
        journal.begun = journal.file.bytes;
        let name = journal_name(number);
        journal.store.keep(&name, journal.file.file.as_fd())?;
        Ok(journal)
    }

    /// Whether it has grown enough to be rewritten.
    pub(crate) const fn has_grown(&self) -> bool {
        let most = if self.begun > MIN_GROWTH_BYTES {
            self.begun
        } else {
            MIN_GROWTH_BYTES
        };
        self.file.bytes > self.begun + most
    }

    /// Whether its replacement is being written.
    pub(crate) const fn is_rewriting(&self) -> bool {
        self.next.is_some()
    }

    /// Starts its replacement.
    pub(crate) fn begin_next(&mut self) {
        match JournalFile::new() {
            Ok(next) => self.next = Some(next),
            Err(error) => self.give_up_next(&error),
        }
    }

    /// Adds a slice of the snapshot to the next journal.
    pub(crate) fn add_to_next(&mut self, entries: impl Iterator<Item = Entry>) {
        if let Some(next) = &mut self.next {
            if let Err(error) = lines(entries).and_then(|lines| next.append(&lines)) {
                self.give_up_next(&error);
            }
        }
    }

    /// The snapshot in the next journal is whole: it replaces this one.
    pub(crate) fn finish_next(&mut self) {
        self.add_to_next([Entry::Whole].into_iter());
        let Some(next) = self.next.take() else { return };
        let before = journal_name(self.number);
        let name = journal_name(self.number + 1);
        match self.store.keep(&name, next.file.as_fd()) {
            Ok(()) => {
                self.number += 1;
                self.begun = next.bytes;
                self.file = next;
                self.store.forget(&before);
            }
            Err(error) => self.give_up_next(&error),
        }
    }

    /// Drops the next journal after an error. The old one stays valid; the next attempt comes after
    /// as much growth again.
    fn give_up_next(&mut self, error: &io::Error) {
        self.next = None;
        self.begun = self.file.bytes;
        self.fail(error);
    }

    pub(crate) fn write(&mut self, entry: &Entry) {
        let line = match line(entry) {
            Ok(line) => line,
            Err(error) => return self.fail(&error),
        };
        if let Err(error) = self.file.append(&line) {
            self.fail(&error);
        }
        if let Some(next) = &mut self.next {
            if let Err(error) = next.append(&line) {
                self.give_up_next(&error);
            }
        }
    }

    pub(crate) fn keep(&mut self, name: &str, file: impl AsFd) {
        if let Err(error) = self.store.keep(name, file.as_fd()) {
            self.fail(&error);
        }
    }

    /// The name of the next control page.
    pub(crate) fn next_page_name(&mut self) -> String {
        self.pages += 1;
        format!("c{}", base36(self.pages))
    }

    /// Remembers that a file was not stored because a quota is used up.
    pub(crate) fn note_unkept(&mut self, message: &str) {
        self.fail(&io::Error::other(message));
    }

    pub(crate) fn forget(&self, name: &str) {
        self.store.forget(name);
    }

    fn fail(&mut self, error: &io::Error) {
        self.failure.get_or_insert_with(|| {
            format!("what is registered from now on may not outlive a restart: {error}")
        });
    }

    /// Why a file was not stored; each reason is returned once.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }
}

fn line(entry: &Entry) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    Ok(line)
}

fn lines(entries: impl Iterator<Item = Entry>) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    for entry in entries {
        all.append(&mut line(&entry)?);
    }
    Ok(all)
}

pub(crate) fn journal_name(number: u64) -> String {
    format!("j{number}")
}

/// The name of a sensor's file.
pub(crate) fn sensor_name(stream: u32) -> String {
    format!("s{}", base36(stream.into()))
}

/// The names of a trace area's files: for writing, for reading.
pub(crate) fn area_names(area: u64) -> [String; 2] {
    let number = base36(area);
    [format!("a{number}"), format!("r{number}")]
}

fn base36(mut number: u64) -> String {
    let mut digits = Vec::new();
    loop {
        let digit = u32::try_from(number % 36).unwrap_or(0);
        digits.extend(char::from_digit(digit, 36));
        number /= 36;
        if number == 0 {
            return digits.iter().rev().collect();
        }
    }
}

/// A journal that was read.
#[derive(Debug)]
pub(crate) struct JournalContents {
    pub(crate) entries: Vec<Entry>,
    pub(crate) number: u64,
}

/// Takes all journals out of the stored files and reads the valid one. The second value has the
/// names of the others.
pub(crate) fn read(files: &mut Vec<KeptFile>) -> (Option<JournalContents>, Vec<String>) {
    let numbered = |name: &str| name.strip_prefix('j')?.parse::<u64>().ok();
    let (mut best, mut others): (Option<(String, JournalContents)>, _) = (None, Vec::new());
    let mut rest = Vec::new();
    for (name, file) in files.drain(..) {
        let Some(number) = numbered(&name) else {
            rest.push((name, file));
            continue;
        };
        let entries = parse(&contents(file).unwrap_or_default());
        let whole = entries.iter().any(|entry| matches!(entry, Entry::Whole));
        let newest = best.as_ref().is_none_or(|(_, read)| read.number < number);
        others.push(name.clone());
        if whole && newest {
            best = Some((name, JournalContents { entries, number }));
        }
    }
    *files = rest;
    if let Some((name, _)) = &best {
        others.retain(|other| other != name);
    }
    (best.map(|(_, read)| read), others)
}

fn contents(file: OwnedFd) -> io::Result<Vec<u8>> {
    let file = File::from(file);
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(0)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// The entries up to the first one that is torn or unknown.
fn parse(bytes: &[u8]) -> Vec<Entry> {
    bytes
        .split_inclusive(|&byte| byte == b'\n')
        .take_while(|line| line.ends_with(b"\n"))
        .map_while(|line| serde_json::from_slice(line).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::sync::{Arc, Mutex};

    use super::{base36, parse, read, Entry, Journal, KeptFile, Store};

    /// Keeps files as the service manager does.
    #[derive(Clone, Debug, Default)]
    struct MemoryStore(Arc<Mutex<Vec<KeptFile>>>);

    impl MemoryStore {
        fn files(&self) -> Vec<KeptFile> {
            let files = self.0.lock().unwrap();
            let again = |file: &OwnedFd| file.as_fd().try_clone_to_owned().unwrap();
            files
                .iter()
                .map(|(name, file)| (name.clone(), again(file)))
                .collect()
        }
    }

    impl Store for MemoryStore {
        fn keep(&self, name: &str, file: BorrowedFd<'_>) -> std::io::Result<()> {
            let file = file.try_clone_to_owned()?;
            self.0.lock().unwrap().push((name.to_string(), file));
            Ok(())
        }

        fn forget(&self, name: &str) {
            self.0.lock().unwrap().retain(|(other, _)| other != name);
        }
    }

    fn freed(entries: &[Entry]) -> Vec<u32> {
        let freed = |entry: &Entry| match entry {
            Entry::Freed { stream, .. } => Some(*stream),
            _ => None,
        };
        entries.iter().filter_map(freed).collect()
    }

    fn free(stream: u32) -> Entry {
        Entry::Freed {
            stream,
            unread: false,
        }
    }

    #[test]
    fn newest_whole_journal_counts() {
        let shelf = MemoryStore::default();
        let first = [free(1)].into_iter();
        let mut journal = Journal::begin(Box::new(shelf.clone()), 1, 0, first).unwrap();
        journal.write(&free(2));
        let (found, others) = read(&mut shelf.files());
        assert_eq!(freed(&found.unwrap().entries), [1, 2]);
        assert!(others.is_empty());
        let before = shelf.files();
        // In slices, with an entry between them.
        journal.begin_next();
        journal.write(&free(4));
        assert_eq!(shelf.files().len(), 1, "not before it is whole");
        journal.add_to_next([free(3)].into_iter());
        journal.finish_next();
        journal.write(&free(5));
        let mut all = shelf.files();
        assert_eq!(all.len(), 1, "the old one is forgotten");
        // A directory that died in between left both.
        all.splice(0..0, before);
        let (found, others) = read(&mut all);
        let found = found.unwrap();
        assert_eq!((freed(&found.entries), found.number), (vec![4, 3, 5], 2));
        assert_eq!(others, ["j1"]);
    }

    #[test]
    fn torn_entry_and_what_follows_is_not_read() {
        let shelf = MemoryStore::default();
        let entries = [free(1), free(2)].into_iter();
        let journal = Journal::begin(Box::new(shelf.clone()), 1, 0, entries).unwrap();
        let length = journal.file.bytes;
        for cut in 0..length {
            let file = shelf.files().remove(0).1;
            let bytes = super::contents(file).unwrap();
            let found = parse(&bytes[..cut as usize]);
            let breaks = bytes[..cut as usize]
                .iter()
                .filter(|&&b| b == b'\n')
                .count();
            assert_eq!(found.len(), breaks);
        }
        assert!(parse(b"{\"freed\":{\"stream\":1,\"unread\":false}}\nrubbish\n").len() == 1);
    }

    #[test]
    fn names_are_short() {
        assert_eq!([0, 35, 36, 1295].map(base36), ["0", "z", "10", "zz"]);
        assert_eq!(super::sensor_name(u32::MAX).len(), 8);
    }
}
