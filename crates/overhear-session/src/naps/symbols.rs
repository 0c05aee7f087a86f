// SPDX-License-Identifier: MIT OR Apache-2.0
//! From addresses of a process to functions, by the files that were mapped there.

use std::collections::BTreeMap;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolizer};
use overhear_naps::CodeMapping;

use super::report::FrameReport;

/// Symbols of the files of all processes.
pub(super) struct Symbols {
    symbolizer: Symbolizer,
    known: BTreeMap<(String, u64), Option<(String, u64)>>,
}

impl Symbols {
    pub(super) fn new() -> Self {
        Self {
            symbolizer: Symbolizer::new(),
            known: BTreeMap::new(),
        }
    }

    /// The function at an address. `is_return`: the address is that after a call.
    pub(super) fn frame(
        &mut self,
        mappings: &[CodeMapping],
        address: u64,
        is_return: bool,
    ) -> FrameReport {
        // The call ends before the address, perhaps with the function.
        let place = address - u64::from(is_return && address > 0);
        let mapping = mappings
            .iter()
            .find(|mapping| (mapping.start..mapping.end).contains(&place));
        let Some(mapping) = mapping else {
            return FrameReport {
                address,
                ..FrameReport::default()
            };
        };
        let file_offset = place - mapping.start + mapping.offset;
        let key = (mapping.path.clone(), file_offset);
        let found = match self.known.get(&key) {
            Some(found) => found.clone(),
            None => {
                let found = self.look_up(&mapping.path, file_offset);
                self.known.insert(key, found.clone());
                found
            }
        };
        FrameReport {
            address,
            function: found.as_ref().map(|(name, _)| name.clone()),
            offset: found.map(|(_, offset)| offset + u64::from(is_return)),
            file: Some(mapping.path.clone()),
            file_offset: Some(file_offset),
        }
    }

    fn look_up(&self, path: &str, file_offset: u64) -> Option<(String, u64)> {
        let source = Source::Elf(Elf::new(path));
        let found = self
            .symbolizer
            .symbolize_single(&source, Input::FileOffset(file_offset))
            .ok()?;
        let symbol = found.as_sym()?;
        Some((symbol.name.to_string(), symbol.offset as u64))
    }
}
