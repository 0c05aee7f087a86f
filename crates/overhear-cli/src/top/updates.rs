// SPDX-License-Identifier: MIT OR Apache-2.0
//! The updates of `overhear.toml` whose distributions `overhear top` shows.

use std::collections::BTreeSet;
use std::path::Path;

use overhear_directory::Query;
use overhear_event::{Analysis, ElementView, Gap, StreamDescriptor, StreamId, Timestamp};

use overhear_session::builtin_updates::CountingUpdate;
use overhear_session::config::{Config, MissedConfig};
use overhear_session::connect;
use overhear_session::error::{ErrorKind, SessionError};
use overhear_session::quantities::HistogramReport;
use overhear_session::updates::{UpdateSpecification, Updates};

/// An update that has distributions: it counts the values of a field, or its plug-in returns some.
pub(super) struct Drawn {
    name: String,
    // Each with its id, and whether one has appeared.
    sensors: Vec<(String, Query, bool)>,
    // The streams of these.
    streams: BTreeSet<StreamId>,
    evaluation: Evaluation,
    // Its distributions at the last look.
    histograms: Vec<HistogramReport>,
    notes: Vec<String>,
}

enum Evaluation {
    Counting(CountingUpdate),
    Plugin(Updates),
}

impl Evaluation {
    fn update(&mut self) -> &mut dyn Analysis {
        match self {
            Self::Counting(counting) => counting,
            Self::Plugin(updates) => updates.set(),
        }
    }
}

impl Drawn {
    /// Those of a file that have a `field` or a `plugin`, which are what can be drawn while it
    /// grows.
    ///
    /// # Errors
    /// [`SessionError`] if the file makes no sense, has none, or a plug-in cannot be used.
    pub(super) fn of(path: &Path) -> Result<Vec<Self>, SessionError> {
        let config = Config::read(path)?;
        let every: Vec<String> = config.sensors.iter().map(|it| it.id.clone()).collect();
        let mut drawn = Vec::new();
        for update in config.updates {
            let ids = update.sensors.as_ref().unwrap_or(&every);
            if let Some(id) = ids.iter().find(|id| !every.contains(id)) {
                let message = format!(
                    "{}: update `{}` takes sensor `{id}`, which is not described; add a [[sensor]] with this id",
                    path.display(),
                    update.name
                );
                return Err(SessionError::new(ErrorKind::Usage, message));
            }
            let sensors: Result<Vec<_>, SessionError> = ids
                .iter()
                .map(|id| Ok((id.clone(), connect::query(id, None)?, false)))
                .collect();
            let sensors = sensors?;
            let evaluation = match &update.plugin {
                Some(plugin) => {
                    let base = path.parent().unwrap_or(Path::new(""));
                    let place = base.join(plugin);
                    let specification = UpdateSpecification::parse(&place.to_string_lossy());
                    let missed = update.missed.map(MissedConfig::policy);
                    let loaded = Updates::load_with(&[specification], missed, |_| ());
                    Evaluation::Plugin(loaded.map_err(|error| {
                        let message = format!("update `{}`: {}", update.name, error.message);
                        SessionError::new(error.kind, message)
                    })?)
                }
                None if update.field.is_none() => continue,
                None => Evaluation::Counting(CountingUpdate::new(update.field)),
            };
            drawn.push(Self {
                name: update.name,
                sensors,
                streams: BTreeSet::new(),
                evaluation,
                histograms: Vec::new(),
                notes: Vec::new(),
            });
        }
        match drawn.is_empty() {
            true => Err(SessionError::new(
                ErrorKind::Usage,
                format!(
                    "{}: no [[update]] counts the values of a `field` or has a `plugin`, so there is nothing to draw",
                    path.display()
                ),
            )),
            false => Ok(drawn),
        }
    }

    /// Asks what there is to be drawn now, between two rounds.
    pub(super) fn look(&mut self) {
        (self.histograms, self.notes) = match &mut self.evaluation {
            Evaluation::Counting(counting) => {
                let histogram = counting.histogram(&self.name);
                (histogram.into_iter().collect(), counting.complaints())
            }
            Evaluation::Plugin(updates) => {
                let looks = updates.interim_reports();
                let histograms = looks.iter().flat_map(|it| it.histograms()).collect();
                let notes = looks.into_iter().flat_map(|look| {
                    let ended = look.message;
                    let ended = ended.map(|message| format!("{}: {message}", look.state));
                    ended.into_iter().chain(look.complaints)
                });
                (histograms, notes.collect())
            }
        };
    }

    /// What is missing in its distributions: sensors that have not appeared or lack the field,
    /// values that are no numbers, updates that have failed.
    pub(super) fn notes(&self) -> Vec<String> {
        let absent = self.sensors.iter().filter(|(_, _, met)| !met);
        let absent = absent.map(|(id, ..)| format!("no sensor `{id}` has appeared yet"));
        let all = absent.chain(self.notes.iter().cloned());
        all.map(|note| format!("update `{}`: {note}", self.name))
            .collect()
    }

    /// Its distributions at the last look.
    pub(super) fn histograms(&self) -> &[HistogramReport] {
        &self.histograms
    }

    fn takes(&self, stream: &StreamDescriptor) -> bool {
        self.streams.contains(&stream.id)
    }
}

impl Analysis for Drawn {
    /// Takes elements of opened streams only.
    fn open(&mut self, stream: &StreamDescriptor) {
        let own = self.sensors.iter_mut();
        if let Some((.., met)) = own.into_iter().find(|(_, query, _)| query.matches(stream)) {
            *met = true;
            self.streams.insert(stream.id);
            self.evaluation.update().open(stream);
        } else {
            // A directory that begins anew gives its numbers anew.
            self.streams.remove(&stream.id);
        }
    }

    fn element(&mut self, element: &ElementView<'_>) {
        if self.takes(element.stream) {
            self.evaluation.update().element(element);
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if self.takes(stream) {
            self.evaluation.update().gap(stream, gap);
        }
    }

    fn advance(&mut self, now: Timestamp) {
        self.evaluation.update().advance(now);
    }
}
