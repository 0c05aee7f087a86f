// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear list --data-sources`: what can be sampled on this machine.

use overhear_sampling::counters::survey;
use overhear_sampling::sources::SourceFinder;
use serde::Serialize;

/// The data sources of this machine, as a JSON document.
#[derive(Clone, Debug, Serialize)]
pub struct DataSourceListing {
    /// Version of the program that made the document.
    pub overhear_version: String,
    /// The data sources, by family.
    pub data_sources: Vec<ListedDataSource>,
}

/// One data source.
#[derive(Clone, Debug, Serialize)]
pub struct ListedDataSource {
    /// The name for `--sample`.
    pub name: String,
    /// What it is, as a phrase.
    pub description: String,
}

impl DataSourceListing {
    /// The counters that this user can open, and all other data sources.
    #[must_use]
    pub fn of_machine() -> Self {
        let counters = survey().counters.into_iter();
        let working = counters.filter(|counter| counter.result.is_ok());
        let counters = working.map(|counter| ListedDataSource {
            name: counter.event.name().to_owned(),
            description: "counter of a process or of all CPUs".to_owned(),
        });
        let others = SourceFinder::default().available().into_iter();
        let others = others.map(|source| ListedDataSource {
            name: source.name,
            description: source.description,
        });
        let mut data_sources: Vec<ListedDataSource> = Vec::new();
        for listed in others.chain(counters) {
            // The accounts of faults are counters as well.
            if data_sources.iter().all(|known| known.name != listed.name) {
                data_sources.push(listed);
            }
        }
        Self {
            overhear_version: env!("CARGO_PKG_VERSION").to_owned(),
            data_sources,
        }
    }
}
