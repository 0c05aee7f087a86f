// SPDX-License-Identifier: MIT OR Apache-2.0
//! The catalogue `overhear/streams.json`: facts that our own reader needs and the metadata lacks.

use std::collections::BTreeSet;
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use overhear_event::{Nanos, StreamDescriptor};
use serde::de::DeserializeSeed;
use serde::{Deserialize, Serialize};

use crate::error::ReadError;
use crate::format::{
    FIRST_FORMAT_WITH_CHECKSUMS, FIRST_FORMAT_WITH_LIMITS, FIRST_FORMAT_WITH_NUMBERS, FORMAT,
    FORMAT_WITHOUT_LIMITS, OLDEST_FORMAT,
};
use crate::paths::{unreadable, TracePaths, MAX_CATALOGUE_BYTES, METADATA, STREAMS};

/// Where and when a trace was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceIdentity {
    /// The name of the machine.
    pub hostname: String,
    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC` at the start of the recording; readers compute the
    /// wall time with it.
    pub realtime_offset: Nanos,
    /// Distinguishes traces of the same machine; optional.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<[u8; 16]>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Catalogue {
    pub(crate) format: u32,
    byte_order: String,
    pub(crate) identity: TraceIdentity,
    pub(crate) streams: Vec<CatalogueEntry>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CatalogueEntry {
    /// Number of the CTF stream class, which every packet repeats.
    pub(crate) class: u32,
    pub(crate) descriptor: Arc<StreamDescriptor>,
}

/// The part that is parsed first: the rest of another format need not parse at all.
#[derive(Deserialize)]
struct Preamble {
    format: u32,
    byte_order: String,
}

impl Preamble {
    fn native() -> Self {
        let order = if cfg!(target_endian = "little") {
            "little"
        } else {
            "big"
        };
        Self {
            format: FORMAT,
            byte_order: order.to_owned(),
        }
    }
}

impl Catalogue {
    pub(crate) fn new(identity: TraceIdentity) -> Self {
        let native = Preamble::native();
        Self {
            format: FORMAT_WITHOUT_LIMITS,
            byte_order: native.byte_order,
            identity,
            streams: Vec::new(),
        }
    }

    pub(crate) const fn has_checksums(&self) -> bool {
        self.format >= FIRST_FORMAT_WITH_CHECKSUMS
    }

    pub(crate) const fn has_numbers(&self) -> bool {
        self.format >= FIRST_FORMAT_WITH_NUMBERS
    }

    /// Whether the recording has limits, and a document about them.
    pub(crate) const fn has_limits(&self) -> bool {
        self.format >= FIRST_FORMAT_WITH_LIMITS
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        // Its keys are texts and its values plain, so JSON can express all of it.
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// Reads and checks the catalogue of a trace.
    pub(crate) fn read(paths: &TracePaths) -> Result<Self, ReadError> {
        let failed = |file: PathBuf, cause: &io::Error| match cause.kind() {
            io::ErrorKind::NotFound => ReadError::NotATrace {
                dir: paths.dir().to_path_buf(),
                missing: file,
            },
            _ => unreadable(&file, cause),
        };
        let file = paths.streams_json();
        let json = paths.own().read(STREAMS, MAX_CATALOGUE_BYTES);
        let json = json.map_err(|cause| failed(file.clone(), &cause))?;
        // The metadata is for other readers; it is not read here.
        let metadata = paths.trace().file(METADATA);
        let metadata = metadata.and_then(|file| file.metadata());
        let metadata = metadata.map_err(|cause| failed(paths.metadata(), &cause))?;
        if metadata.len() > MAX_CATALOGUE_BYTES {
            let cause = format!(
                "it has {} bytes, more than the {MAX_CATALOGUE_BYTES} that are allowed",
                metadata.len()
            );
            return Err(unreadable(&paths.metadata(), &io::Error::other(cause)));
        }
        let preamble: Preamble = parse(&file, &json)?;
        let native = Preamble::native();
        if !(OLDEST_FORMAT..=FORMAT).contains(&preamble.format) {
            return Err(ReadError::OtherFormat {
                file,
                found: preamble.format,
            });
        }
        if preamble.byte_order != native.byte_order {
            return Err(ReadError::OtherByteOrder {
                file,
                found: preamble.byte_order,
            });
        }
        let catalogue: Self = parse(&file, &json)?;
        let mut ids = BTreeSet::new();
        for entry in &catalogue.streams {
            if !ids.insert(entry.descriptor.id) {
                return Err(ReadError::TwiceInCatalogue {
                    file,
                    stream: entry.descriptor.id,
                });
            }
        }
        Ok(catalogue)
    }
}

/// Parses JSON; the error has the place of the damage.
pub(crate) fn parse<'a, T: Deserialize<'a>>(file: &Path, json: &'a [u8]) -> Result<T, ReadError> {
    parse_as(file, json, PhantomData)
}

/// As [`parse`], by this seed.
pub(crate) fn parse_as<'a, T: DeserializeSeed<'a>>(
    file: &Path,
    json: &'a [u8],
    seed: T,
) -> Result<T::Value, ReadError> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let parsed = seed.deserialize(&mut deserializer);
    let parsed = parsed.and_then(|parsed| deserializer.end().map(|()| parsed));
    parsed.map_err(|error| {
        // The parser counts in lines and columns; every other message here counts in bytes.
        let before: usize = json
            .split_inclusive(|&byte| byte == b'\n')
            .take(error.line().saturating_sub(1))
            .map(<[u8]>::len)
            .sum();
        ReadError::BadJson {
            file: file.to_path_buf(),
            offset: (before + error.column().saturating_sub(1)) as u64,
            cause: error.to_string(),
        }
    })
}
