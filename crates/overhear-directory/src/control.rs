// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control pages of a task (`stream-layout.md`, section 8), on both sides.
//!
//! The directory writes them and their task maps them read-only. A task has as many as it needs: a
//! page has a fixed number of lines, and each further page is as large as all before it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, TryLockError, Weak};

use overhear_stream::CONTROL_LINE_BYTES;
use overhear_stream::{
    ControlLayout, ControlLine, KeptWords, LayoutError, SwitchState, HEADER_SIZE,
};

use crate::file_watch::FileCharge;
use crate::memory::{MapError, Mapping, MemoryFile};

/// Lines of a task's first page: with its header it takes two pages of memory.
const FIRST_LINES: u32 = 64;
/// Lines of the largest page, unless one sensor needs more.
const MAX_LINES: u32 = 4096;

/// A sensor's line in mapped memory.
pub type MappedLine = ControlLine<KeptWords<Arc<Mapping>>>;

/// A control page, on the directory's side.
#[derive(Debug)]
pub(crate) struct ControlPage {
    file: MemoryFile,
    mapping: Arc<Mapping>,
    lines: u32,
    // The first line that was never used. `free` has the first lines of returned blocks, by block
    // size.
    used: u32,
    free: BTreeMap<u32, Vec<u32>>,
    // Its name in the service manager's store; empty if it is not stored.
    name: String,
    // The charge of its memory.
    charge: Option<FileCharge>,
}

impl ControlPage {
    fn create(lines: u32) -> Result<Self, MapError> {
        let lines = lines.clamp(1, 1 << 24);
        let layout = ControlLayout::new(lines).expect("the number of lines was cut to the range");
        let initial = [(0, layout.header().to_vec())];
        let file = MemoryFile::create("overhear-control", layout.bytes(), &initial)?;
        file.seal_size()?;
        Self::adopt(file)
    }

    /// A page from before a restart. [`ControlPages::claim`] marks the lines that are in use.
    pub(crate) fn adopt(file: MemoryFile) -> Result<Self, MapError> {
        let mapping = Arc::new(Mapping::writable(&file, file.bytes())?);
        let lines = file.bytes().saturating_sub(HEADER_SIZE) / CONTROL_LINE_BYTES;
        let lines = u32::try_from(lines).unwrap_or(0);
        Ok(Self {
            file,
            mapping,
            lines,
            used: 0,
            free: BTreeMap::new(),
            name: String::new(),
            charge: None,
        })
    }

    pub(crate) fn set_charge(&mut self, charge: FileCharge) {
        self.charge = Some(charge);
    }

    /// Closes the page. Returns its name and its charge, which the caller releases.
    pub(crate) fn close(self) -> (String, Option<FileCharge>) {
        (self.name, self.charge)
    }

    pub(crate) const fn file(&self) -> &MemoryFile {
        &self.file
    }

    fn take(&mut self, lines: u32) -> Option<u32> {
        if let Some(line) = self.free.get_mut(&lines).and_then(Vec::pop) {
            return Some(line);
        }
        let line = self.used;
        let used = line.checked_add(lines)?;
        (used <= self.lines).then(|| {
            self.used = used;
            line
        })
    }
}

/// The position of a sensor's line: the index of the task's page, and the line in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ControlSlot {
    pub(crate) page: usize,
    pub(crate) line: u32,
}

/// All control pages of a task.
#[derive(Debug, Default)]
pub(crate) struct ControlPages(BTreeMap<usize, ControlPage>);

impl ControlPages {
    /// Allocates the lines of a sensor in one of the existing pages, with its switch set and no
    /// lane reclaimed. `None` if no page has room.
    pub(crate) fn allocate(&mut self, lanes: u32, enabled: bool) -> Option<ControlSlot> {
        let lines = ControlLayout::lines_of_sensor(lanes);
        let mut pages = self.0.iter_mut();
        let (page, line) = pages.find_map(|(page, control)| Some((*page, control.take(lines)?)))?;
        let slot = ControlSlot { page, line };
        if let Some(line) = self.line(slot, lanes) {
            line.switch(if enabled {
                SwitchState::On
            } else {
                SwitchState::Off
            });
            (0..lanes).for_each(|lane| line.reclaim(lane, 0));
        }
        Some(slot)
    }

    /// Makes a further page, with room for a sensor of `lanes` lanes.
    pub(crate) fn next_page(&self, lanes: u32) -> Result<ControlPage, MapError> {
        ControlPage::create(self.next_lines(lanes))
    }

    /// Size of the next page in bytes.
    pub(crate) fn next_page_bytes(&self, lanes: u32) -> u64 {
        let bytes = HEADER_SIZE + self.next_lines(lanes) as usize * CONTROL_LINE_BYTES;
        bytes as u64
    }

    fn next_lines(&self, lanes: u32) -> u32 {
        let all: u32 = self.0.values().map(|page| page.lines).sum();
        let lines = ControlLayout::lines_of_sensor(lanes);
        all.clamp(FIRST_LINES, MAX_LINES).max(lines)
    }

    /// Adds a page; returns its index.
    pub(crate) fn add(&mut self, page: ControlPage) -> usize {
        let index = self.0.last_key_value().map_or(0, |(last, _)| last + 1);
        self.0.insert(index, page);
        index
    }

    /// All pages, for closing.
    pub(crate) fn into_pages(self) -> impl Iterator<Item = ControlPage> {
        self.0.into_values()
    }

    /// Number of pages.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the lines of a sensor that is gone.
    pub(crate) fn give_back(&mut self, slot: ControlSlot, lanes: u32) {
        if let Some(page) = self.0.get_mut(&slot.page) {
            let lines = ControlLayout::lines_of_sensor(lanes);
            page.free.entry(lines).or_default().push(slot.line);
        }
    }

    /// The line of a sensor.
    pub(crate) fn line(&self, slot: ControlSlot, lanes: u32) -> Option<MappedLine> {
        let mapping = &self.0.get(&slot.page)?.mapping;
        ControlLine::new(mapping.part(0, mapping.bytes()), slot.line, lanes).ok()
    }

    /// A read-only descriptor of the page, for the task.
    pub(crate) fn reader(&self, slot: ControlSlot) -> Option<OwnedFd> {
        self.0.get(&slot.page)?.file.reader().ok()
    }

    /// The pages' indices and their names in the service manager's store.
    pub(crate) fn names(&self) -> impl Iterator<Item = (usize, &str)> {
        self.0
            .iter()
            .map(|(index, page)| (*index, page.name.as_str()))
    }

    /// Sets the name of a page in the service manager's store.
    pub(crate) fn set_name(&mut self, index: usize, name: String) {
        if let Some(page) = self.0.get_mut(&index) {
            page.name = name;
        }
    }

    /// Restores a stored page at its index.
    pub(crate) fn restore(&mut self, index: usize, mut page: ControlPage, name: &str) {
        page.name = name.to_string();
        self.0.insert(index, page);
    }

    /// Marks the lines of a restored sensor as in use.
    pub(crate) fn claim(&mut self, slot: ControlSlot, lanes: u32) {
        if let Some(page) = self.0.get_mut(&slot.page) {
            let end = slot.line + ControlLayout::lines_of_sensor(lanes);
            page.used = page.used.max(end);
        }
    }
}

/// A sensor's line in its task's control page, on the program's side: mapped read-only.
#[derive(Clone, Debug)]
pub struct Control {
    mapping: Arc<Mapping>,
    line: u32,
    lanes: u32,
}

impl Control {
    /// Maps the page of a grant. The sensors of a task share the map.
    pub(crate) fn map(file: &OwnedFd, line: u32, lanes: u32) -> Result<Self, MapError> {
        static PAGES: Mutex<Vec<(u64, Weak<Mapping>)>> = Mutex::new(Vec::new());
        let (inode, size) = rustix::fs::fstat(file).map_or((0, 0), |about| {
            (about.st_ino, usize::try_from(about.st_size).unwrap_or(0))
        });
        // In a forked child the lock may be held for ever by a thread of the parent. Whenever it is
        // held, the page is mapped once more.
        let mut pages = match PAGES.try_lock() {
            Ok(pages) => Some(pages),
            Err(TryLockError::Poisoned(pages)) => Some(pages.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        // A mapped page keeps its inode, so the inode number is unique among them.
        let known = pages.as_mut().and_then(|pages| {
            pages.retain(|(_, page)| page.strong_count() > 0);
            let page = pages.iter().find(|(of, _)| *of == inode)?.1.upgrade()?;
            (page.bytes() == size).then_some(page)
        });
        let mapping = match known {
            Some(mapping) => mapping,
            None => {
                let mapping = Arc::new(Mapping::read_only(file, size)?);
                if let Some(pages) = &mut pages {
                    pages.push((inode, Arc::downgrade(&mapping)));
                }
                mapping
            }
        };
        Ok(Self {
            mapping,
            line,
            lanes,
        })
    }

    /// The line, which has the sensor's switch and its reclaimed lanes.
    ///
    /// # Errors
    /// [`LayoutError::TooSmall`] if the page ends before the line.
    pub fn line(&self) -> Result<MappedLine, LayoutError> {
        let words = self.mapping.part(0, self.mapping.bytes());
        ControlLine::new(words, self.line, self.lanes)
    }

    /// Address of the line; the lanes' `reclaimed` words follow it. `None` if the page ends before
    /// their end. Valid as long as [`Self::mapping`] lives.
    #[must_use]
    pub fn address(&self) -> Option<NonNull<u64>> {
        let at = HEADER_SIZE + self.line as usize * CONTROL_LINE_BYTES;
        let lines = ControlLayout::lines_of_sensor(self.lanes) as usize;
        if at + lines * CONTROL_LINE_BYTES > self.mapping.bytes() {
            return None;
        }
        // SAFETY: within the map by the line above.
        Some(unsafe { self.mapping.base().add(at) }.cast())
    }

    /// The map that the line lies in.
    #[must_use]
    pub const fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

#[cfg(test)]
mod tests {
    use overhear_stream::SwitchState;

    use super::{ControlPages, FIRST_LINES};

    /// Allocates, and returns whether a page was made.
    fn allocate(pages: &mut ControlPages, lanes: u32) -> (super::ControlSlot, bool) {
        if let Some(slot) = pages.allocate(lanes, true) {
            return (slot, false);
        }
        let bytes = pages.next_page_bytes(lanes);
        let page = pages.next_page(lanes).unwrap();
        assert_eq!(page.file().bytes() as u64, bytes);
        pages.add(page);
        (pages.allocate(lanes, true).unwrap(), true)
    }

    #[test]
    fn lines_are_used_again_and_pages_grow() {
        let mut pages = ControlPages::default();
        let (first, new) = allocate(&mut pages, 0);
        assert!(new);
        assert_eq!(pages.line(first, 0).unwrap().state(), SwitchState::On);
        let (laned, new) = allocate(&mut pages, 8);
        assert!(!new);
        assert_eq!(laned.line, first.line + 1);
        pages.line(laned, 8).unwrap().reclaim(7, 99);
        pages.line(laned, 8).unwrap().switch(SwitchState::Off);
        pages.give_back(laned, 8);
        let (again, _) = allocate(&mut pages, 8);
        assert_eq!(again, laned);
        let line = pages.line(again, 8).unwrap();
        assert_eq!(line.state(), SwitchState::On);
        assert_eq!(line.reclaimed(7), 0);
        for _ in 3..FIRST_LINES {
            assert!(!allocate(&mut pages, 0).1);
        }
        let (second, new) = allocate(&mut pages, 0);
        assert!(new);
        assert_eq!((second.page, second.line), (1, 0));
        // A sensor that needs more than a whole page.
        let (third, new) = allocate(&mut pages, 4096);
        assert!(new && pages.line(third, 4096).is_some());
    }
}
