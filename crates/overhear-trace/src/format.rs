// SPDX-License-Identifier: MIT OR Apache-2.0
//! Versions of the format of recordings.

/// Version of the directory's layout and of `packet.rs`. Since format 2 packets may have padding;
/// since format 3 packets and documents have checksums, and the summary has the recording's time
/// bounds; since format 4 packets are numbered, and `ends.json` states where each stream ends.
/// Format 5 has `disk.json`, gaps of the cause `disk` and streams of several files; it is written
/// only if a recording has limits.
pub(crate) const FORMAT: u32 = 5;
/// Version that is written if a recording has no limits on the disk.
pub(crate) const FORMAT_WITHOUT_LIMITS: u32 = 4;
/// The oldest format that can be read.
pub(crate) const OLDEST_FORMAT: u32 = 1;
/// Version that is written if a recording is to have no checksums.
pub(crate) const LAST_FORMAT_WITHOUT_CHECKSUMS: u32 = 2;
/// The oldest format with checksums.
pub(crate) const FIRST_FORMAT_WITH_CHECKSUMS: u32 = 3;
/// The oldest format with numbered packets.
pub(crate) const FIRST_FORMAT_WITH_NUMBERS: u32 = 4;
/// The oldest format with limits on the disk.
pub(crate) const FIRST_FORMAT_WITH_LIMITS: u32 = 5;
