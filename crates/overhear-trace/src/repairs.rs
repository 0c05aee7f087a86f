// SPDX-License-Identifier: MIT OR Apache-2.0
//! The list of repairs, `overhear/repairs.json`: the tails that were cut off. They remain known, so
//! that results are the same before a repair and after it.

use std::fmt;
use std::path::PathBuf;

use overhear_event::StreamId;
use serde::{Deserialize, Serialize};

use crate::catalogue::parse;
use crate::error::ReadError;
use crate::paths::{
    document_name, part_of_name, unreadable, Part, TracePaths, MAX_DOCUMENT_BYTES, REPAIRS,
};

/// The end of a stream's file that is no whole packet: the recorder died while writing it. The
/// number of elements in it is unknown, so it is no gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The stream.
    pub stream: StreamId,
    /// Its file.
    pub file: PathBuf,
    /// Begin of the tail in the file, in bytes.
    pub offset: u64,
    /// Size of the tail in bytes.
    pub bytes: u64,
}

impl fmt::Display for TornTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: the last {} bytes, from byte {} on, are torn; everything before them is read",
            self.file.display(),
            self.bytes,
            self.offset
        )
    }
}

/// All repairs of a trace, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Repairs {
    cut: Vec<CutTail>,
}

/// A tail that a repair has cut off, or was about to cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CutTail {
    stream: StreamId,
    /// Number of the part of the stream.
    #[serde(default, skip_serializing_if = "is_first")]
    part: u64,
    offset: u64,
    bytes: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_first(part: &u64) -> bool {
    *part == 0
}

impl Repairs {
    /// Reads the list; an empty one if nothing was repaired.
    pub(crate) fn read(paths: &TracePaths) -> Result<Self, ReadError> {
        let file = paths.document(REPAIRS);
        match paths.own().read(document_name(REPAIRS), MAX_DOCUMENT_BYTES) {
            Ok(json) => parse(&file, &json),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(unreadable(&file, &error)),
        }
    }

    /// Adds tails that are about to be cut; returns whether the list has changed.
    pub(crate) fn add(&mut self, tails: &[TornTail]) -> bool {
        let before = self.cut.len();
        for tail in tails {
            let name = tail.file.file_name().and_then(part_of_name);
            let cut = CutTail {
                stream: tail.stream,
                part: match name {
                    Some((_, Part::Number(part))) => part,
                    _ => 0,
                },
                offset: tail.offset,
                bytes: tail.bytes,
            };
            // A repair was killed after it had listed the tail.
            if !self.cut.contains(&cut) {
                self.cut.push(cut);
            }
        }
        self.cut.len() > before
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The tails, as they were before they were cut.
    pub(crate) fn tails<'a>(
        &'a self,
        paths: &'a TracePaths,
    ) -> impl Iterator<Item = TornTail> + 'a {
        self.cut.iter().map(|tail| TornTail {
            stream: tail.stream,
            file: paths.stream(tail.stream, Part::Number(tail.part)),
            offset: tail.offset,
            bytes: tail.bytes,
        })
    }
}
