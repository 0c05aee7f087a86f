// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration of `overheard`: quotas, retention and rules (`docs/directory.md`).

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use overhear_event::{EventSet, Nanos};
use serde::Deserialize;

use crate::limits::LimitSettings;
use crate::needs::Needs;
use crate::query::{Query, QueryError};
use crate::quota::Resource;
use crate::rules::{Action, Rule, Rules};
use crate::service::DirectoryBuilder;

/// Why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// Its contents are invalid.
    #[error("{}: {reason}", .file.display())]
    Wrong {
        /// The file.
        file: PathBuf,
        /// The error in it.
        reason: String,
    },
}

/// The contents of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// How long the buffers of an ended process are kept for a later monitor, in seconds.
    retention_seconds: Option<u64>,
    /// The largest monitor period, in ms, that streams with a declared rate are sized for.
    largest_period_ms: Option<NonZeroU32>,
    /// Whether sensors that no monitor needs are switched off.
    disable_unused: bool,
    quota: QuotaSettings,
    rule: Vec<RuleSettings>,
}

/// `total_*` is for all users together, the rest for each user.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct QuotaSettings {
    total_bytes: Option<u64>,
    total_record_bytes: Option<u64>,
    total_sensors: Option<u64>,
    total_connections: Option<u64>,
    total_monitors: Option<u64>,
    total_pattern_characters: Option<u64>,
    total_deferred: Option<u64>,
    total_kept_files: Option<u64>,
    bytes: Option<u64>,
    record_bytes: Option<u64>,
    sensors: Option<u64>,
    connections: Option<u64>,
    monitors: Option<u64>,
    pattern_characters: Option<u64>,
    deferred: Option<u64>,
    kept_files: Option<u64>,
    /// For single users, by name or number.
    user: BTreeMap<String, UserQuota>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct UserQuota {
    bytes: Option<u64>,
    record_bytes: Option<u64>,
    sensors: Option<u64>,
    connections: Option<u64>,
    monitors: Option<u64>,
    pattern_characters: Option<u64>,
    deferred: Option<u64>,
    kept_files: Option<u64>,
}

/// The resources for which the file has an amount.
fn given<const N: usize>(
    all: [(Resource, Option<u64>); N],
) -> impl Iterator<Item = (Resource, u64)> {
    let given = all.into_iter();
    given.filter_map(|(resource, amount)| Some((resource, amount?)))
}

impl QuotaSettings {
    fn check(self) -> Result<LimitSettings, String> {
        let all = given([
            (Resource::BufferBytes, self.total_bytes),
            (Resource::RecordBytes, self.total_record_bytes),
            (Resource::Sensors, self.total_sensors),
            (Resource::Connections, self.total_connections),
            (Resource::Monitors, self.total_monitors),
            (Resource::Patterns, self.total_pattern_characters),
            (Resource::Deferred, self.total_deferred),
            (Resource::Kept, self.total_kept_files),
        ]);
        let each = UserQuota {
            bytes: self.bytes,
            record_bytes: self.record_bytes,
            sensors: self.sensors,
            connections: self.connections,
            monitors: self.monitors,
            pattern_characters: self.pattern_characters,
            deferred: self.deferred,
            kept_files: self.kept_files,
        };
        let mut of_users = BTreeMap::new();
        for (user, own) in self.user {
            let user = match user.parse() {
                Ok(number) => number,
                Err(_) => user_number(&user)?,
            };
            of_users.insert(user, own.given().collect());
        }
        Ok(LimitSettings {
            all: all.collect(),
            each: each.given().collect(),
            of_users,
            is_embedded: false,
        })
    }
}

impl UserQuota {
    fn given(self) -> impl Iterator<Item = (Resource, u64)> {
        given([
            (Resource::BufferBytes, self.bytes),
            (Resource::RecordBytes, self.record_bytes),
            (Resource::Sensors, self.sensors),
            (Resource::Connections, self.connections),
            (Resource::Monitors, self.monitors),
            (Resource::Patterns, self.pattern_characters),
            (Resource::Deferred, self.deferred),
            (Resource::Kept, self.kept_files),
        ])
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleSettings {
    /// The rule's name in refusals.
    title: String,
    /// The permitted actions. Either this or `forbid` is given.
    permit: Option<Vec<Action>>,
    /// The forbidden actions.
    forbid: Option<Vec<Action>>,
    users: Option<Vec<Principal>>,
    groups: Option<Vec<Principal>>,
    owners: Option<Vec<Principal>>,
    /// A pattern, `TASK/SENSOR#INSTANCE`.
    sensors: Option<String>,
}

/// A user or a group, by id or name.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Principal {
    Number(u32),
    Name(String),
}

/// Reads the configuration from `file`, or from the default file if that exists.
pub(super) fn load(file: Option<&Path>) -> Result<Checked, SettingsError> {
    let named = file.is_some();
    let Some(file) = file.map(Path::to_path_buf).or_else(usual_file) else {
        return check(Settings::default()).map_err(|reason| SettingsError::Wrong {
            file: PathBuf::new(),
            reason,
        });
    };
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if !named && error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(source) => return Err(SettingsError::Read { file, source }),
    };
    parse(&text).map_err(|reason| SettingsError::Wrong { file, reason })
}

fn usual_file() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/etc/overhear/directory.toml"));
    }
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&variable("HOME")?).join(".config")));
    Some(folder?.join("overhear/directory.toml"))
}

/// Settings after validation, with all names resolved.
#[derive(Debug)]
pub(crate) struct Checked {
    retention: Duration,
    largest_period: Option<Nanos>,
    disable_unused: bool,
    limits: LimitSettings,
    rules: Rules,
}

impl Checked {
    pub(super) fn apply(self, builder: DirectoryBuilder) -> DirectoryBuilder {
        let builder = match self.largest_period {
            Some(period) => builder.largest_period(period),
            None => builder,
        };
        let builder = match self.disable_unused {
            true => builder.needs(Needs::events(EventSet::new())),
            false => builder,
        };
        builder
            .retention(self.retention)
            .limits(self.limits)
            .rules(self.rules)
    }
}

fn parse(text: &str) -> Result<Checked, String> {
    let settings: Settings = toml::from_str(text).map_err(|error| error.to_string())?;
    check(settings)
}

fn check(settings: Settings) -> Result<Checked, String> {
    let rules: Result<Vec<Rule>, String> = settings.rule.into_iter().map(rule).collect();
    Ok(Checked {
        retention: Duration::from_secs(settings.retention_seconds.unwrap_or(60)),
        largest_period: settings
            .largest_period_ms
            .map(|ms| Nanos::from_ms(ms.get().into())),
        disable_unused: settings.disable_unused,
        limits: settings.quota.check()?,
        rules: Rules::new(rules?),
    })
}

fn rule(settings: RuleSettings) -> Result<Rule, String> {
    let title = settings.title;
    let wrong = |reason: String| format!("the rule \"{title}\": {reason}");
    let (permits, actions) = match (settings.permit, settings.forbid) {
        (Some(actions), None) => (true, actions),
        (None, Some(actions)) => (false, actions),
        _ => return Err(wrong("give either `permit` or `forbid`".to_string())),
    };
    let numbers = |all: Option<Vec<Principal>>, number: fn(&str) -> Result<u32, String>| {
        let number = |principal| match principal {
            Principal::Number(number) => Ok(number),
            Principal::Name(name) => number(&name),
        };
        all.map(|all| all.into_iter().map(number).collect::<Result<Vec<u32>, _>>())
            .transpose()
            .map_err(wrong)
    };
    let sensors = settings
        .sensors
        .map(|names| Query::parse(&names)?.compile());
    let sensors = sensors.transpose();
    let sensors = sensors.map_err(|error: QueryError| wrong(error.to_string()))?;
    Ok(Rule {
        permits,
        actions,
        users: numbers(settings.users, user_number)?,
        groups: numbers(settings.groups, group_number)?,
        owners: numbers(settings.owners, user_number)?,
        sensors,
        title: title.clone(),
    })
}

fn user_number(name: &str) -> Result<u32, String> {
    let user = uzers::get_user_by_name(name);
    user.map(|user| user.uid())
        .ok_or_else(|| format!("there is no user `{name}` on this machine"))
}

fn group_number(name: &str) -> Result<u32, String> {
    let group = uzers::get_group_by_name(name);
    group
        .map(|group| group.gid())
        .ok_or_else(|| format!("there is no group `{name}` on this machine"))
}

#[cfg(test)]
mod tests {
    use overhear_event::Nanos;

    use super::parse;
    use crate::limits::Machine;
    use crate::quota::{Amounts, Resource};

    #[test]
    fn whole_file_is_understood() {
        let text = r#"
            retention_seconds = 5
            largest_period_ms = 10000
            disable_unused = true
            [quota]
            total_bytes = 1000
            bytes = 500
            sensors = 10
            monitors = 3
            total_monitors = 5
            kept_files = 6
            [quota.user.root]
            sensors = 1
            [quota.user.4711]
            bytes = 7
            monitors = 2
            [[rule]]
            title = "operators"
            permit = ["attach", "switch"]
            users = [1000, "root"]
            groups = ["root"]
            owners = [0]
            sensors = "server/*"
            [[rule]]
            title = "nobody else"
            forbid = ["register"]
        "#;
        let checked = parse(text).unwrap();
        assert_eq!(checked.retention.as_secs(), 5);
        assert_eq!(checked.largest_period, Some(Nanos::from_ms(10_000)));
        assert!(checked.disable_unused && !parse("").unwrap().disable_unused);
        let machine = Machine {
            memory_bytes: 1 << 32,
            descriptors: 1024,
            watches: 8192,
        };
        let mut quotas = checked.limits.quotas(&machine, 0);
        let usage = |bytes, sensors| {
            Amounts::of(Resource::BufferBytes, bytes).and(Resource::Sensors, sensors)
        };
        quotas.charge(0, usage(400, 1)).unwrap();
        assert!(quotas.charge(0, usage(1, 1)).is_err());
        assert!(quotas.charge(4711, usage(8, 1)).is_err());
        quotas.charge(1, usage(500, 1)).unwrap();
        let amount = Amounts::of;
        assert!(quotas.charge(1, amount(Resource::Monitors, 4)).is_err());
        assert!(quotas.charge(4711, amount(Resource::Monitors, 3)).is_err());
        assert!(quotas.charge(1, amount(Resource::Kept, 7)).is_err());
        quotas.charge(1, amount(Resource::Monitors, 3)).unwrap();
        assert!(
            quotas.charge(2, amount(Resource::Monitors, 3)).is_err(),
            "five in all"
        );
    }

    #[test]
    fn invalid_settings_are_named() {
        let cases = [
            ("retention = 5", "unknown field `retention`"),
            ("largest_period_ms = 0", "largest_period_ms"),
            ("[quota]\nbytes = -1", "bytes"),
            ("[quota.user.nosuchuser]\nbytes = 1", "no user `nosuchuser`"),
            ("[[rule]]\ntitle = 't'", "the rule \"t\": give either"),
            (
                "[[rule]]\ntitle = 't'\npermit = ['read']",
                "unknown variant `read`",
            ),
            (
                "[[rule]]\ntitle = 't'\nforbid = ['attach']\ngroups = ['nosuchgroup']",
                "no group `nosuchgroup`",
            ),
            (
                "[[rule]]\ntitle = 't'\nforbid = ['attach']\nsensors = '['",
                "the rule \"t\": `[` is not a pattern",
            ),
        ];
        for (text, words) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}
