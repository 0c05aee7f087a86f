// SPDX-License-Identifier: MIT OR Apache-2.0
//! What users are charged for, and until when.
//!
//! Memory files are charged until the kernel has freed them: closing one here says nothing of those who
//! have a descriptor or a map of it. Everything else is charged as long as the directory has it.

use std::collections::{BTreeMap, HashMap};

use overhear_event::StreamId;

use super::Registry;
use crate::file_watch::{FileWatch, Freed, WatchId};
use crate::journal::Entry;
use crate::memory::MemoryFile;
use crate::quota::{Amounts, Resource, Shortage};

/// Until when a file is charged.
#[derive(Debug)]
pub(crate) enum FileCharge {
    /// Until the kernel has freed it.
    Watched(WatchId),
    /// Until the directory closes it, where files cannot be watched.
    Unwatched(u32, Amounts),
}

impl FileCharge {
    /// The watch, for a journal.
    pub(crate) const fn watch(&self) -> Option<i32> {
        match self {
            Self::Watched(watch) => Some(watch.as_raw()),
            Self::Unwatched(..) => None,
        }
    }

    /// The charge of a file of an earlier life.
    pub(crate) const fn restored(watch: i32) -> Self {
        Self::Watched(WatchId::from_raw(watch))
    }
}

/// The charges of files that exist.
#[derive(Debug, Default)]
pub(super) struct FileCharges {
    watch: Option<FileWatch>,
    of_files: BTreeMap<WatchId, (u32, Amounts)>,
}

/// Why something is not granted.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Something is short that may be released later.
    Shortage(Shortage),
    /// For good.
    Sentence(String),
}

impl Refusal {
    pub(crate) fn into_sentence(self) -> String {
        match self {
            Self::Shortage(shortage) => shortage.sentence,
            Self::Sentence(sentence) => sentence,
        }
    }
}

impl From<Shortage> for Refusal {
    fn from(shortage: Shortage) -> Self {
        Self::Shortage(shortage)
    }
}

impl From<String> for Refusal {
    fn from(sentence: String) -> Self {
        Self::Sentence(sentence)
    }
}

impl From<&str> for Refusal {
    fn from(sentence: &str) -> Self {
        Self::Sentence(sentence.to_string())
    }
}

fn entry(watch: WatchId, uid: u32, charged: Amounts) -> Entry {
    Entry::Charged {
        watch: watch.as_raw(),
        uid,
        bytes: charged.get(Resource::BufferBytes),
        sensors: charged.get(Resource::Sensors),
        record_bytes: charged.get(Resource::RecordBytes),
        deferred: charged.get(Resource::Deferred),
    }
}

/// How many retained buffers are looked at for one that nobody reads.
const MAX_LOOKED_AT: usize = 64;

impl Registry {
    /// Watches files from now on, by an instance that is new or was kept.
    pub(crate) fn watch_files(&mut self, watch: FileWatch) {
        self.files.watch = Some(watch);
    }

    pub(crate) const fn file_watch(&self) -> Option<&FileWatch> {
        self.files.watch.as_ref()
    }

    /// Charges a user. Where something is short, what has been freed meanwhile is released first, and then
    /// retained buffers that nobody reads make room, oldest first: those of the same user, and for root
    /// those of everybody.
    pub(crate) fn charge(&mut self, uid: u32, wanted: Amounts) -> Result<(), Shortage> {
        loop {
            let shortage = match self.quotas.charge(uid, wanted) {
                Ok(()) => return Ok(()),
                Err(shortage) => shortage,
            };
            if self.collect_freed() {
                continue;
            }
            let frees = matches!(
                shortage.resource,
                Resource::BufferBytes
                    | Resource::RecordBytes
                    | Resource::Sensors
                    | Resource::Descriptors
            );
            let oldest = match frees && !shortage.is_permanent {
                true => self.oldest_unread(uid),
                false => None,
            };
            match oldest {
                Some(stream) => self.free(stream),
                None => return Err(shortage),
            }
        }
    }

    /// The retained buffer that makes room for a user.
    fn oldest_unread(&self, uid: u32) -> Option<StreamId> {
        let unread = |stream: &StreamId| {
            let sensor = self.sensors.get(stream);
            sensor.is_some_and(|sensor| sensor.holders.is_empty())
        };
        let own = self.retained_of.get(&uid).into_iter().flatten();
        let own = own.map(|&(_, stream)| stream);
        own.take(MAX_LOOKED_AT).find(unread).or_else(|| {
            let all = self.retained.iter().map(|&(_, stream)| stream);
            let mut all = all.take(MAX_LOOKED_AT);
            all.find(|stream| self.quotas.is_privileged(uid) && unread(stream))
        })
    }

    /// Releases what the directory had for a user.
    pub(crate) fn release(&mut self, uid: u32, gone: Amounts) {
        self.quotas.release(uid, gone);
        self.note_room();
    }

    /// Watches a file that is about to be handed out. What was charged for it is released when the kernel
    /// has freed it.
    ///
    /// # Errors
    /// A sentence if it cannot be watched, in a directory that serves more than one program.
    pub(crate) fn charge_file(
        &mut self,
        file: &MemoryFile,
        uid: u32,
        charged: Amounts,
    ) -> Result<FileCharge, Refusal> {
        let watched = self.files.watch.as_ref().map(|watch| watch.add(file));
        match watched {
            Some(Ok(watch)) => {
                self.files.of_files.insert(watch, (uid, charged));
                if let Some(journal) = &mut self.journal {
                    journal.write(&entry(watch, uid, charged));
                }
                Ok(FileCharge::Watched(watch))
            }
            _ if self.has_embedded_monitor() => Ok(FileCharge::Unwatched(uid, charged)),
            Some(Err(error)) => Err(format!(
                "the directory cannot watch its buffer ({error}); raise fs.inotify.max_user_watches"
            )
            .into()),
            None => Err(
                "the directory cannot watch its buffer; raise fs.inotify.max_user_instances".into(),
            ),
        }
    }

    /// Charges something else for a file from now on: it has been charged already, and what it takes the
    /// place of is released.
    pub(crate) fn recharge_file(
        &mut self,
        charge: &mut FileCharge,
        uid: u32,
        before: Amounts,
        charged: Amounts,
    ) {
        match charge {
            FileCharge::Unwatched(_, amounts) => *amounts = charged,
            FileCharge::Watched(watch) => {
                self.files.of_files.insert(*watch, (uid, charged));
                if let Some(journal) = &mut self.journal {
                    journal.write(&entry(*watch, uid, charged));
                }
            }
        }
        self.quotas.release(uid, before);
    }

    /// Takes over what was charged in an earlier life, as far as the files exist.
    pub(crate) fn restore_charges(&mut self, charges: HashMap<WatchId, (u32, Amounts)>) {
        let Some(watch) = &self.files.watch else {
            return;
        };
        // Without a list of them all count: more than there is, until the next restart.
        let live = watch.live().ok();
        for (id, (uid, charged)) in charges {
            if live.as_ref().is_none_or(|live| live.contains(&id)) {
                self.quotas.count(uid, charged);
                self.files.of_files.insert(id, (uid, charged));
            }
        }
        // Made by a directory that died before it could write that down.
        for unknown in live.into_iter().flatten() {
            if !self.files.of_files.contains_key(&unknown) {
                watch.remove(unknown);
            }
        }
    }

    /// What is charged for files, from a watch on, for a journal.
    pub(crate) fn charges_from(
        &self,
        first: WatchId,
    ) -> impl Iterator<Item = (WatchId, Entry)> + '_ {
        let all = self.files.of_files.range(first..);
        all.map(|(watch, (uid, charged))| (*watch, entry(*watch, *uid, *charged)))
    }

    /// The directory has closed a file.
    pub(crate) fn file_closed(&mut self, charge: Option<FileCharge>) {
        match charge {
            Some(FileCharge::Unwatched(uid, charged)) => self.release(uid, charged),
            // Often that was the last reference.
            Some(FileCharge::Watched(_)) | None => {
                self.collect_freed();
            }
        }
    }

    /// Releases what was charged for files that the kernel has freed since; says whether there were any.
    pub(crate) fn collect_freed(&mut self) -> bool {
        let Some(watch) = &self.files.watch else {
            return false;
        };
        let freed = match watch.take_freed() {
            Freed::These(freed) => freed,
            Freed::TooMany => {
                let Ok(live) = watch.live() else {
                    return false;
                };
                let known = self.files.of_files.keys();
                known
                    .filter(|watch| !live.contains(watch))
                    .copied()
                    .collect()
            }
        };
        let mut any = false;
        for watch in freed {
            if let Some((uid, charged)) = self.files.of_files.remove(&watch) {
                self.quotas.release(uid, charged);
                any = true;
            }
        }
        if any {
            self.note_room();
        }
        any
    }
}
