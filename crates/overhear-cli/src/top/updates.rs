// SPDX-License-Identifier: MIT OR Apache-2.0
//! The updates of `overhear.toml` whose distributions `overhear top` shows.

use std::path::Path;

use overhear_directory::Query;
use overhear_event::{ElementView, Gap, StreamDescriptor, Timestamp, Update};

use crate::config::Config;
use crate::exit::{Failure, USAGE};
use crate::guaranteed::Counting;
use crate::place;
use crate::report::HistogramReport;

/// An update that counts the values of a field.
pub(super) struct Counted {
    name: String,
    // Each with its id, and whether one has appeared.
    sensors: Vec<(String, Query, bool)>,
    counting: Counting,
}

impl Counted {
    /// Those of a file that have a `field`, which are what can be drawn while it grows.
    ///
    /// # Errors
    /// [`Failure`] if the file makes no sense, or has none.
    pub(super) fn of(path: &Path) -> Result<Vec<Self>, Failure> {
        let config = Config::read(path)?;
        let every: Vec<String> = config.sensors.iter().map(|it| it.id.clone()).collect();
        let mut counted = Vec::new();
        for update in config.updates {
            if update.field.is_none() || update.plugin.is_some() {
                continue;
            }
            let ids = update.sensors.as_ref().unwrap_or(&every);
            if let Some(id) = ids.iter().find(|id| !every.contains(id)) {
                let sentence = format!(
                    "{}: update `{}` takes sensor `{id}`, which is not described; add a [[sensor]] with this id",
                    path.display(),
                    update.name
                );
                return Err(Failure::new(USAGE, sentence));
            }
            let sensors: Result<Vec<_>, Failure> = ids
                .iter()
                .map(|id| Ok((id.clone(), place::query(id, None)?, false)))
                .collect();
            counted.push(Self {
                name: update.name,
                sensors: sensors?,
                counting: Counting::new(update.field),
            });
        }
        match counted.is_empty() {
            true => Err(Failure::new(
                USAGE,
                format!(
                    "{}: no [[update]] counts the values of a `field`, so there is nothing to draw",
                    path.display()
                ),
            )),
            false => Ok(counted),
        }
    }

    /// What is missing in its distribution: sensors that have not appeared or lack the field, values that are
    /// no numbers.
    pub(super) fn notes(&self) -> Vec<String> {
        let absent = self.sensors.iter().filter(|(_, _, met)| !met);
        let absent = absent.map(|(id, ..)| format!("no sensor `{id}` has appeared yet"));
        let all = absent.chain(self.counting.complaints());
        all.map(|note| format!("update `{}`: {note}", self.name))
            .collect()
    }

    pub(super) fn histogram(&self) -> Option<HistogramReport> {
        self.counting.histogram(&self.name)
    }
}

impl Update for Counted {
    /// What it is not told of is no concern of it later, either.
    fn open(&mut self, stream: &StreamDescriptor) {
        let own = self.sensors.iter_mut();
        if let Some((.., met)) = own.into_iter().find(|(_, query, _)| query.matches(stream)) {
            *met = true;
            self.counting.open(stream);
        }
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.counting.element(element);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.counting.gap(stream, gap);
    }

    fn advance(&mut self, now: Timestamp) {
        self.counting.advance(now);
    }
}
