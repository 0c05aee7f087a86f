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
pub(super) struct DrawnUpdate {
    name: String,
    sensors: Vec<UpdateSensor>,
    /// Streams of `sensors` that have appeared.
    streams: BTreeSet<StreamId>,
    kind: Kind,
    /// Distributions at the latest [`Self::refresh`].
    histograms: Vec<HistogramReport>,
    /// Complaints at the latest [`Self::refresh`].
    complaints: Vec<String>,
}

/// A sensor that an update evaluates.
struct UpdateSensor {
    id: String,
    query: Query,
    has_appeared: bool,
}

enum Kind {
    Counting(CountingUpdate),
    Plugin(Updates),
}

impl Kind {
    fn analysis(&mut self) -> &mut dyn Analysis {
        match self {
            Self::Counting(counting) => counting,
            Self::Plugin(updates) => updates.set(),
        }
    }
}

impl DrawnUpdate {
    /// The updates of a file that have a `field` or a `plugin`: their distributions can be drawn
    /// while they grow.
    ///
    /// # Errors
    /// [`SessionError`] if the file is invalid, has no such update, or a plug-in cannot be loaded.
    pub(super) fn all_of(path: &Path) -> Result<Vec<Self>, SessionError> {
        let config = Config::read(path)?;
        let described: Vec<String> = config.sensors.iter().map(|it| it.id.clone()).collect();
        let mut drawn = Vec::new();
        for update in config.updates {
            let ids = update.sensors.as_ref().unwrap_or(&described);
            if let Some(id) = ids.iter().find(|id| !described.contains(id)) {
                let message = format!(
                    "{}: update `{}` takes sensor `{id}`, which is not described; add a [[sensor]] with this id",
                    path.display(),
                    update.name
                );
                return Err(SessionError::new(ErrorKind::Usage, message));
            }
            let sensors: Result<Vec<_>, SessionError> = ids
                .iter()
                .map(|id| {
                    Ok(UpdateSensor {
                        id: id.clone(),
                        query: connect::query(id, None)?,
                        has_appeared: false,
                    })
                })
                .collect();
            let sensors = sensors?;
            let kind = match &update.plugin {
                Some(plugin) => {
                    let base = path.parent().unwrap_or(Path::new(""));
                    let file = base.join(plugin);
                    let specification = UpdateSpecification::parse(&file.to_string_lossy());
                    let missed = update.missed.map(MissedConfig::policy);
                    let loaded = Updates::load_with(&[specification], missed, |_| ());
                    Kind::Plugin(loaded.map_err(|error| {
                        let message = format!("update `{}`: {}", update.name, error.message);
                        SessionError::new(error.kind, message)
                    })?)
                }
                None if update.field.is_none() => continue,
                None => Kind::Counting(CountingUpdate::new(update.field)),
            };
            drawn.push(Self {
                name: update.name,
                sensors,
                streams: BTreeSet::new(),
                kind,
                histograms: Vec::new(),
                complaints: Vec::new(),
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

    /// Takes the distributions from the update, between two rounds.
    pub(super) fn refresh(&mut self) {
        (self.histograms, self.complaints) = match &mut self.kind {
            Kind::Counting(counting) => {
                let histogram = counting.histogram(&self.name);
                (histogram.into_iter().collect(), counting.complaints())
            }
            Kind::Plugin(updates) => {
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

    /// Causes of values that the distributions lack: sensors that have not appeared or lack the
    /// field, values that are no numbers, updates that have failed.
    pub(super) fn notes(&self) -> Vec<String> {
        let absent = self.sensors.iter().filter(|sensor| !sensor.has_appeared);
        let absent = absent.map(|sensor| format!("no sensor `{}` has appeared yet", sensor.id));
        let all = absent.chain(self.complaints.iter().cloned());
        all.map(|note| format!("update `{}`: {note}", self.name))
            .collect()
    }

    /// Its distributions at the latest [`Self::refresh`].
    pub(super) fn histograms(&self) -> &[HistogramReport] {
        &self.histograms
    }

    fn takes(&self, stream: &StreamDescriptor) -> bool {
        self.streams.contains(&stream.id)
    }
}

impl Analysis for DrawnUpdate {
    fn open(&mut self, stream: &StreamDescriptor) {
        let mut own = self.sensors.iter_mut();
        if let Some(sensor) = own.find(|sensor| sensor.query.matches(stream)) {
            sensor.has_appeared = true;
            self.streams.insert(stream.id);
            self.kind.analysis().open(stream);
        } else {
            // A restarted directory uses stream ids again.
            self.streams.remove(&stream.id);
        }
    }

    fn element(&mut self, element: &ElementView<'_>) {
        if self.takes(element.stream) {
            self.kind.analysis().element(element);
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if self.takes(stream) {
            self.kind.analysis().gap(stream, gap);
        }
    }

    fn advance(&mut self, now: Timestamp) {
        self.kind.analysis().advance(now);
    }
}
