// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts: what an element means to plain metrics of one task at one time.
//!
//! A part is split in two. [`PartHot`] is read for each element, [`PartInfo`] only where that does
//! not suffice.

use overhear_event::{ElementView, Nanos, Timestamp};

use super::fields::{NumberField, TaskField};
use super::rule::Rule;
use super::task_source::TaskSource;

/// Hot half of a part: how to load its task and its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartHot {
    /// Offset in the payload of the four bytes that name the task, or [`NO_OFFSET`] if the task or
    /// the time takes more than four bytes each.
    task_offset: u32,
    /// All bits, or none if the elements name a constant task.
    task_mask: u32,
    /// The constant task, or 0.
    task: u32,
    /// Offset of the four bytes with the nanoseconds by which the part is backdated.
    backdate_offset: u32,
    /// All bits, or none if the part has the time of its element.
    backdate_mask: u32,
}

impl PartHot {
    fn new(task: TaskSource, backdate_by: Option<NumberField>) -> Self {
        // Without a field no bit of the first bytes is used.
        let mut part = Self {
            task_offset: 0,
            task_mask: 0,
            task: 0,
            backdate_offset: 0,
            backdate_mask: 0,
        };
        match task {
            TaskSource::Field(TaskField::Four(begin)) => {
                (part.task_offset, part.task_mask) = (begin, u32::MAX)
            }
            TaskSource::Always(task) => part.task = task,
            _ => part.task_offset = NO_OFFSET,
        }
        match backdate_by.map(TaskField::from) {
            None => {}
            Some(TaskField::Four(begin)) => {
                (part.backdate_offset, part.backdate_mask) = (begin, u32::MAX)
            }
            Some(TaskField::Other(_)) => part.task_offset = NO_OFFSET,
        }
        part
    }

    /// Whether the task is a field of four bytes and the time is that of the element.
    pub(crate) const fn is_direct(&self) -> bool {
        self.task_offset != NO_OFFSET && self.task_mask == u32::MAX && self.backdate_mask == 0
    }

    /// The task of a [direct](PartHot::is_direct) part; `None` if the payload is too short.
    #[inline(always)]
    pub(crate) fn task(&self, payload: &[u8]) -> Option<u32> {
        four_bytes(payload, self.task_offset)
    }

    /// The task, and by how much the part is backdated, without a branch on the kind of part.
    /// `None` if only [`PartInfo::read`] can decide it.
    #[inline(always)]
    pub(crate) fn task_and_backdate(&self, payload: &[u8]) -> Option<(u32, Nanos)> {
        let task = four_bytes(payload, self.task_offset)? & self.task_mask | self.task;
        let by = four_bytes(payload, self.backdate_offset)? & self.backdate_mask;
        Some((task, Nanos::from_ns(u64::from(by))))
    }
}

/// The four bytes at this offset; `None` if the payload is too short.
#[inline(always)]
fn four_bytes(payload: &[u8], begin: u32) -> Option<u32> {
    let begin = begin as usize;
    let bytes = payload.get(begin..begin + size_of::<u32>())?;
    Some(u32::from_ne_bytes(*bytes.first_chunk()?))
}

/// Cold half of a part: its rules, and the general way to read task and time.
#[derive(Clone, Debug)]
pub(crate) struct PartInfo {
    /// Index of the route.
    pub(crate) route: u32,
    /// Where the element names the task.
    pub(crate) task: TaskSource,
    /// Field with the nanoseconds by which the part is backdated, if it is.
    pub(crate) backdate_by: Option<NumberField>,
    /// The rules of all metrics, those of one metric next to each other.
    pub(crate) rules: Box<[Rule]>,
}

impl PartInfo {
    /// Whether the part is at most one symbol of each metric, and none of them a fallback.
    pub(crate) fn is_single(&self) -> bool {
        let mut pairs = self.rules.windows(2);
        pairs.all(|pair| pair[0].metric != pair[1].metric)
            && !self.rules.iter().any(|rule| rule.is_fallback)
    }

    /// The task and the time of this part of an element; task 0 if it names none.
    #[inline(never)]
    pub(crate) fn read(&self, element: &ElementView<'_>) -> (u32, Timestamp) {
        let task = self.task.named_by(element.payload);
        let by = self.backdate_by.and_then(|by| by.bits(element.payload));
        let by = Nanos::from_ns(by.unwrap_or(0));
        (task.unwrap_or(0), element.time.minus(by))
    }
}

/// The parts of all routes, indexed by part id.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    hot: Vec<PartHot>,
    info: Vec<PartInfo>,
}

/// No four bytes of a payload are there.
const NO_OFFSET: u32 = u32::MAX;

impl Parts {
    /// The cold half of a part.
    pub(crate) fn info(&self, part: u32) -> &PartInfo {
        &self.info[part as usize]
    }

    /// The number of parts.
    pub(crate) fn count(&self) -> usize {
        self.info.len()
    }

    /// The cold halves of the parts from this id on.
    pub(crate) fn info_from(&self, part: usize) -> &[PartInfo] {
        &self.info[part..]
    }

    /// Appends a part.
    pub(crate) fn push(&mut self, info: PartInfo) {
        self.hot.push(PartHot::new(info.task, info.backdate_by));
        self.info.push(info);
    }

    /// The hot halves of all parts.
    pub(crate) fn hot(&self) -> &[PartHot] {
        &self.hot
    }
}
