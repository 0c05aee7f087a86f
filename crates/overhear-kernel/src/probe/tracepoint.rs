// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracepoints with an event: the fields of their records, as tracefs describes them.
//!
//! If tracefs is not mounted, it is mounted for this process alone, without a place in the file
//! system. That needs the right to mount.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use overhear_event::{is_similar_name, FieldKind};
use rustix::fs::{openat, Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{fsconfig_create, fsmount, fsopen, FsMountFlags, FsOpenFlags, MountAttrFlags};

use super::point::{PointSource, PointValue, ValueKind};

/// Mount points of tracefs, the present one and the old one.
const FOLDERS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// Prefix of the values that the kernel puts before those of each event.
const COMMON: &str = "common_";
/// Maximum size of bytes without a numeric type that are shown as words.
const MAX_WORD_BYTES: usize = 32;
/// Maximum number of names in a list.
const MAX_LISTED: usize = 8;

/// A tracepoint and the values of its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tracepoint {
    pub(super) id: u64,
    pub(super) values: Vec<PointValue>,
    /// Fields that an element cannot have.
    pub(super) left_out: Vec<String>,
}

/// Reason why a tracepoint cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TracepointError {
    /// There is no such tracepoint; these have similar names.
    Missing(Vec<String>),
    /// The phrase after "because".
    NotReadable(String),
}

impl Tracepoint {
    /// Reads the description of a tracepoint from tracefs.
    pub(super) fn read(system: &str, name: &str) -> Result<Self, TracepointError> {
        let tracing = open_tracing().map_err(TracepointError::NotReadable)?;
        let text = |file: &str| read_text(&tracing, &format!("events/{system}/{name}/{file}"));
        let missing = |errno: Errno| match errno {
            Errno::NOENT | Errno::NOTDIR => TracepointError::Missing(alike(&tracing, system, name)),
            errno => TracepointError::NotReadable(not_permitted(errno)),
        };
        let id = text("id").map_err(missing)?;
        let format = text("format").map_err(missing)?;
        let id = id.trim().parse().map_err(|_| {
            let why = "the kernel gives it no id, because it belongs to ftrace alone";
            TracepointError::NotReadable(why.to_owned())
        })?;
        let (values, left_out) = parse(&format);
        Ok(Self {
            id,
            values,
            left_out,
        })
    }
}

fn not_permitted(errno: Errno) -> String {
    match errno {
        Errno::ACCESS | Errno::PERM => {
            "tracefs describes it, which this user may not read; run as root".to_owned()
        }
        errno => format!("tracefs cannot be read ({errno})"),
    }
}

/// The folder of tracefs.
fn open_tracing() -> Result<OwnedFd, String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for location in FOLDERS {
        let opened = rustix::fs::open(location, flags, Mode::empty());
        let events = opened
            .and_then(|tracing| openat(&tracing, "events", flags, Mode::empty()).map(|_| tracing));
        match events {
            Ok(tracing) => return Ok(tracing),
            Err(errno @ (Errno::ACCESS | Errno::PERM)) => return Err(not_permitted(errno)),
            Err(_) => {}
        }
    }
    let mounted = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC).and_then(|system| {
        fsconfig_create(system.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY;
        fsmount(system.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    });
    mounted.map_err(|errno| match errno {
        Errno::NODEV => "this kernel has no tracefs".to_owned(),
        Errno::PERM | Errno::ACCESS => format!(
            "tracefs describes it, and is not mounted; run as root, or `mount -t tracefs tracefs {}`",
            FOLDERS[0]
        ),
        errno => format!("tracefs cannot be mounted ({errno})"),
    })
}

fn read_text(tracing: &OwnedFd, path: &str) -> Result<String, Errno> {
    let file = openat(
        tracing,
        path,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut text = String::new();
    let read = std::fs::File::from(file).read_to_string(&mut text);
    read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(text)
}

/// Tracepoints with this name in other systems, and tracepoints of this system with similar names.
fn alike(tracing: &OwnedFd, system: &str, name: &str) -> Vec<String> {
    let systems = folders(tracing, "events");
    let has_it = |other: &String| {
        let path = format!("events/{other}/{name}");
        openat(tracing, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).is_ok()
    };
    let elsewhere = systems.iter().filter(|other| has_it(other));
    let mut found: Vec<String> = elsewhere.map(|other| format!("{other}:{name}")).collect();
    let own = match systems.iter().any(|other| other == system) {
        true => folders(tracing, &format!("events/{system}")),
        false => Vec::new(),
    };
    let similar = own.into_iter().filter(|other| is_similar_name(other, name));
    found.extend(similar.map(|other| format!("{system}:{other}")));
    found.truncate(MAX_LISTED);
    found
}

/// The names of the folders in a folder, in their order.
fn folders(tracing: &OwnedFd, path: &str) -> Vec<String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat(tracing, path, flags, Mode::empty());
    let Ok(entries) = opened.and_then(Dir::new) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name().to_str().ok()?.to_owned();
        let is_folder = entry.file_type() == rustix::fs::FileType::Directory;
        (is_folder && !name.starts_with('.')).then_some(name)
    });
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

/// The fields of a format file, and the names of those that are left out.
fn parse(format: &str) -> (Vec<PointValue>, Vec<String>) {
    let (mut values, mut left_out) = (Vec::new(), Vec::new());
    for line in format.lines() {
        let Some(field) = Field::parse(line) else {
            continue;
        };
        if field.name.starts_with(COMMON) {
            continue;
        }
        let found = field.values();
        if found.is_empty() {
            left_out.push(field.name.to_owned());
        }
        values.extend(found);
    }
    (values, left_out)
}

/// A line like `field:char comm[16]; offset:8; size:16; signed:0;`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field<'a> {
    /// Without the name and the length of an array.
    kind: &'a str,
    name: &'a str,
    /// The text between the brackets of an array.
    length: Option<&'a str>,
    offset: u16,
    bytes: u16,
    is_signed: bool,
}

impl<'a> Field<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut parts = line.split(';').map(str::trim);
        let declaration = parts.next()?.strip_prefix("field:")?;
        let mut number = |key: &str| parts.next()?.strip_prefix(key)?.parse().ok();
        let (offset, bytes) = (number("offset:")?, number("size:")?);
        let is_signed = number("signed:")? != 0;
        let (declared, length) = match declaration.strip_suffix(']') {
            Some(array) => {
                let (declared, length) = array.rsplit_once('[')?;
                (declared, Some(length))
            }
            None => (declaration, None),
        };
        // `unsigned long long count`, `struct page *page`
        let begin = declared.rfind(|c: char| !c.is_alphanumeric() && c != '_')? + 1;
        Some(Self {
            kind: declared[..begin].trim(),
            name: &declared[begin..],
            length,
            offset,
            bytes,
            is_signed,
        })
    }

    fn value(&self, source: PointSource, kind: ValueKind) -> PointValue {
        PointValue {
            name: self.name.to_owned(),
            source,
            from: self.offset,
            kind,
        }
    }

    /// The values of an element for this field: one, several, or none.
    fn values(&self) -> Vec<PointValue> {
        let is_text = |kind: &str| matches!(kind.trim_start_matches("const "), "char" | "char *");
        for (prefix, source) in [
            ("__data_loc ", PointSource::RecordLocated),
            ("__rel_loc ", PointSource::RecordRelative),
        ] {
            if let Some(kind) = self.kind.strip_prefix(prefix) {
                let kind = kind.trim_end_matches("[]").trim();
                let text = self.value(source, ValueKind::Text(None));
                return is_text(kind).then_some(text).into_iter().collect();
            }
        }
        if self.length.is_some() && is_text(self.kind) {
            return vec![self.value(PointSource::Record, ValueKind::Text(Some(self.bytes)))];
        }
        if self.length.is_none() && self.kind.ends_with('*') {
            return vec![match is_text(self.kind) {
                true => self.value(PointSource::RecordPointed, ValueKind::Text(None)),
                false => self.value(PointSource::Record, ValueKind::Bits(unsigned(self.bytes))),
            }];
        }
        let number = |bytes: u16| match self.is_signed {
            true => signed(bytes),
            false => unsigned(bytes),
        };
        let is_number = matches!(self.bytes, 1 | 2 | 4 | 8);
        if self.length.is_none() && is_number {
            return vec![self.value(PointSource::Record, ValueKind::Number(number(self.bytes)))];
        }
        // Arrays whose length is a number become numbers; other arrays become bytes, in words.
        let length: Option<u16> = self.length.and_then(|length| length.parse().ok());
        let size = length
            .filter(|length| *length > 0)
            .map(|it| self.bytes / it);
        match size {
            Some(size @ (2 | 4 | 8)) => self.split(size, ValueKind::Number(number(size))),
            _ if self.bytes.is_multiple_of(8) => self.split(8, ValueKind::Bits(FieldKind::U64)),
            _ if self.bytes.is_multiple_of(4) => self.split(4, ValueKind::Bits(FieldKind::U32)),
            _ => self.split(1, ValueKind::Bits(FieldKind::U8)),
        }
    }

    /// One value for each `size` bytes: `NAME_0`, `NAME_1` and so on, or `NAME` if there is only
    /// one.
    fn split(&self, size: u16, kind: ValueKind) -> Vec<PointValue> {
        let count = self.bytes / size;
        if count == 0 || usize::from(self.bytes) > MAX_WORD_BYTES.max(usize::from(size) * 8) {
            return Vec::new();
        }
        let part = |index: u16| PointValue {
            name: match count {
                1 => self.name.to_owned(),
                _ => format!("{}_{index}", self.name),
            },
            source: PointSource::Record,
            from: self.offset + index * size,
            kind,
        };
        (0..count).map(part).collect()
    }
}

const fn unsigned(bytes: u16) -> FieldKind {
    match bytes {
        1 => FieldKind::U8,
        2 => FieldKind::U16,
        4 => FieldKind::U32,
        _ => FieldKind::U64,
    }
}

const fn signed(bytes: u16) -> FieldKind {
    match bytes {
        1 => FieldKind::I8,
        2 => FieldKind::I16,
        4 => FieldKind::I32,
        _ => FieldKind::I64,
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::FieldKind::{I32, U16, U32, U64, U8};

    use super::{parse, PointSource, ValueKind};

    const FORMAT: &str = "name: made_up
ID: 300
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:pid_t pid;\toffset:24;\tsize:4;\tsigned:1;
\tfield:__data_loc char[] filename;\toffset:28;\tsize:4;\tsigned:0;
\tfield:__rel_loc char[] other;\toffset:32;\tsize:4;\tsigned:0;
\tfield:__data_loc unsigned long[] set;\toffset:36;\tsize:4;\tsigned:0;
\tfield:struct page * page;\toffset:40;\tsize:8;\tsigned:0;
\tfield:const char * func;\toffset:48;\tsize:8;\tsigned:0;
\tfield:unsigned long args[6];\toffset:56;\tsize:48;\tsigned:0;
\tfield:__u8 saddr[4];\toffset:104;\tsize:4;\tsigned:0;
\tfield:__u8 saddr_v6[16];\toffset:108;\tsize:16;\tsigned:0;
\tfield:bool ok;\toffset:124;\tsize:1;\tsigned:0;
\tfield:char name[TASK_COMM_LEN];\toffset:125;\tsize:16;\tsigned:0;
\tfield:u16 family;\toffset:142;\tsize:2;\tsigned:0;
\tfield:struct large large;\toffset:144;\tsize:400;\tsigned:0;

print fmt: \"comm=%s\", REC->comm
";

    #[test]
    fn fields_of_a_format_are_values_by_their_kinds() {
        let (values, left_out) = parse(FORMAT);
        let found: Vec<_> = values
            .iter()
            .map(|value| (value.name.as_str(), value.source, value.from, value.kind))
            .collect();
        let record = PointSource::Record;
        let bits = ValueKind::Bits;
        let number = ValueKind::Number;
        let mut expected = vec![
            ("comm", record, 8, ValueKind::Text(Some(16))),
            ("pid", record, 24, number(I32)),
            (
                "filename",
                PointSource::RecordLocated,
                28,
                ValueKind::Text(None),
            ),
            (
                "other",
                PointSource::RecordRelative,
                32,
                ValueKind::Text(None),
            ),
            ("page", record, 40, bits(U64)),
            (
                "func",
                PointSource::RecordPointed,
                48,
                ValueKind::Text(None),
            ),
        ];
        let args = ["args_0", "args_1", "args_2", "args_3", "args_4", "args_5"];
        let args = args.into_iter().zip(0..);
        expected.extend(args.map(|(name, index)| (name, record, 56 + 8 * index, number(U64))));
        expected.extend([
            ("saddr", record, 104, bits(U32)),
            ("saddr_v6_0", record, 108, bits(U64)),
            ("saddr_v6_1", record, 116, bits(U64)),
            ("ok", record, 124, number(U8)),
            ("name", record, 125, ValueKind::Text(Some(16))),
            ("family", record, 142, number(U16)),
        ]);
        assert_eq!(found, expected);
        assert_eq!(left_out, ["set", "large"]);
    }

    #[test]
    fn malformed_lines_are_no_fields() {
        for text in [
            "",
            "field:",
            "field:x;",
            "\tfield:int a;\toffset:x;\tsize:4;\tsigned:1;",
        ] {
            assert_eq!(parse(text), (vec![], vec![]), "{text}");
        }
    }
}
