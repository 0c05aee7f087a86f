// SPDX-License-Identifier: MIT OR Apache-2.0
//! Access rules: which users may register, attach to and switch which sensors, and trace which
//! processes. Pure: from credentials, a sensor's descriptor and its owner to a permission or a
//! refusal.

use overhear_event::StreamDescriptor;
use serde::Deserialize;

use crate::peer::{Groups, Peer};
use crate::query::Matcher;
use crate::trace_area::AREA_SENSOR;

/// An action on sensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    /// Register sensors with these names.
    Register,
    /// Read sensors, and list them.
    Attach,
    /// Switch sensors on and off.
    Switch,
    /// Create trace streams in a process, and control them.
    Trace,
}

impl Action {
    const fn phrase(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::Attach => "attach to",
            Self::Switch => "switch",
            Self::Trace => "create trace streams in",
        }
    }
}

/// A rule: a permission or a refusal for all actions, users and sensors that it matches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rule {
    /// Name of the rule, for refusals.
    pub(crate) title: String,
    pub(crate) permits: bool,
    pub(crate) actions: Vec<Action>,
    /// Matches these users, and members of `groups`; anybody if both are `None`.
    pub(crate) users: Option<Vec<u32>>,
    pub(crate) groups: Option<Vec<u32>>,
    /// Matches sensors of these users; of all users if it is `None`.
    pub(crate) owners: Option<Vec<u32>>,
    /// Matches these sensors; all if it is `None`.
    pub(crate) sensors: Option<Matcher>,
}

impl Rule {
    fn fits(&self, action: Action, peer: &Peer, owner: u32, sensor: &StreamDescriptor) -> bool {
        let anybody = self.users.is_none() && self.groups.is_none();
        let named = |users: &Vec<u32>| users.contains(&peer.uid);
        let member = |groups: &Vec<u32>| match &peer.groups {
            Groups::Known(of_peer) => of_peer.iter().any(|group| groups.contains(group)),
            // Unknown groups: a refusal applies, a permission does not.
            Groups::Unknown => !self.permits,
        };
        self.actions.contains(&action)
            && (anybody
                || self.users.as_ref().is_some_and(named)
                || self.groups.as_ref().is_some_and(member))
            && self
                .owners
                .as_ref()
                .is_none_or(|owners| owners.contains(&owner))
            && self
                .sensors
                .as_ref()
                .is_none_or(|matcher| matcher.matches(sensor))
    }
}

/// The rules in order: the first one that matches decides. If none matches, a user may register
/// where the directory serves it, and may read and switch its own sensors; root may do everything.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules(Vec<Rule>);

impl Rules {
    pub(crate) const fn new(rules: Vec<Rule>) -> Self {
        Self(rules)
    }

    /// Whether this peer may register this sensor. `by_default` is the result if no rule matches.
    pub(crate) fn register(
        &self,
        peer: &Peer,
        sensor: &StreamDescriptor,
        by_default: &Result<(), String>,
    ) -> Result<(), String> {
        match self.decide(Action::Register, peer, peer.uid, sensor) {
            Some(decided) => decided,
            None => by_default.clone(),
        }
    }

    /// Upper bound of the work of one decision, in parts of patterns.
    pub(crate) fn cost(&self) -> u32 {
        let patterns = self.0.iter().filter_map(|rule| rule.sensors.as_ref());
        patterns.map(Matcher::cost).sum()
    }

    /// Whether this peer may read and list this sensor of the user `owner`. The error names the
    /// rule.
    pub(crate) fn may_attach(
        &self,
        peer: &Peer,
        owner: u32,
        sensor: &StreamDescriptor,
    ) -> Result<(), String> {
        self.own(Action::Attach, peer, owner, sensor)
    }

    /// Whether this peer may switch this sensor of the user `owner`. The error names the rule.
    pub(crate) fn may_switch(
        &self,
        peer: &Peer,
        owner: u32,
        sensor: &StreamDescriptor,
    ) -> Result<(), String> {
        self.own(Action::Switch, peer, owner, sensor)
    }

    /// Whether this peer may create trace streams in a process of the user `owner`; `area` stands
    /// for its trace area. The error names the rule.
    pub(crate) fn may_trace(
        &self,
        peer: &Peer,
        owner: u32,
        area: &StreamDescriptor,
    ) -> Result<(), String> {
        self.own(Action::Trace, peer, owner, area)
    }

    fn own(
        &self,
        action: Action,
        peer: &Peer,
        owner: u32,
        descriptor: &StreamDescriptor,
    ) -> Result<(), String> {
        match self.decide(action, peer, owner, descriptor) {
            Some(decided) => decided,
            None if peer.uid == owner || peer.uid == 0 => Ok(()),
            None => Err(format!(
                "user {} may not {} {} of user {owner}: without a rule that permits it, only the \
                 same user and root may",
                peer.uid,
                action.phrase(),
                match (action, descriptor.sensor.as_str()) {
                    (Action::Trace, _) => "processes",
                    (_, AREA_SENSOR) => "trace areas",
                    _ => "sensors",
                }
            )),
        }
    }

    /// The decision of the first rule that matches.
    fn decide(
        &self,
        action: Action,
        peer: &Peer,
        owner: u32,
        sensor: &StreamDescriptor,
    ) -> Option<Result<(), String>> {
        let rule = self
            .0
            .iter()
            .find(|rule| rule.fits(action, peer, owner, sensor))?;
        Some(match rule.permits {
            true => Ok(()),
            false => Err(format!(
                "user {} may not {} `{}`: the rule \"{}\" forbids it",
                peer.uid,
                action.phrase(),
                sensor.sensor_label().escape_debug(),
                rule.title
            )),
        })
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Origin, StreamDescriptor, StreamId, TypeSchema};

    use super::{Action, Rule, Rules};
    use crate::peer::{Groups, Peer};
    use crate::query::Query;

    fn peer(uid: u32, groups: &[u32]) -> Peer {
        Peer::for_test(1, uid, Groups::Known(groups.into()))
    }

    fn sensor(name: &str) -> StreamDescriptor {
        StreamDescriptor {
            capacity: 64,
            ..StreamDescriptor::new(
                StreamId::from_raw(7),
                Origin::program(9, "server"),
                name,
                TypeSchema::builder("t").build().unwrap(),
            )
        }
    }

    #[test]
    fn first_rule_that_fits_decides() {
        let secret = Query::parse("secret*").unwrap().compile().unwrap();
        let rules = Rules::new(vec![
            Rule {
                title: "no secrets".to_string(),
                actions: vec![Action::Attach, Action::Register],
                sensors: Some(secret),
                ..Rule::default()
            },
            Rule {
                title: "operators".to_string(),
                permits: true,
                actions: vec![Action::Attach],
                users: Some(vec![5]),
                groups: Some(vec![50]),
                owners: Some(vec![1000]),
                ..Rule::default()
            },
        ]);
        let decide = |action, peer, owner, name| rules.decide(action, &peer, owner, &sensor(name));
        let refused = decide(Action::Attach, peer(0, &[]), 0, "secrets").unwrap();
        let message = refused.unwrap_err();
        assert!(
            message.contains("the rule \"no secrets\" forbids it"),
            "{message}"
        );
        assert!(
            message.contains("attach to `server(9)/secrets`"),
            "{message}"
        );
        // A later rule that fits as well does not matter.
        let refused = decide(Action::Attach, peer(5, &[]), 1000, "secrets").unwrap();
        assert!(refused.unwrap_err().contains("no secrets"));
        let permitted = Some(Ok(()));
        assert_eq!(
            decide(Action::Attach, peer(5, &[]), 1000, "queue"),
            permitted
        );
        assert_eq!(
            decide(Action::Attach, peer(6, &[1, 50]), 1000, "queue"),
            permitted
        );
        assert_eq!(decide(Action::Attach, peer(6, &[1]), 1000, "queue"), None);
        assert_eq!(decide(Action::Attach, peer(5, &[]), 1001, "queue"), None);
        assert_eq!(decide(Action::Switch, peer(5, &[]), 1000, "queue"), None);
        // Unknown groups match a rule that forbids, and no rule that permits.
        let unknown = |uid| Peer::for_test(1, uid, Groups::Unknown);
        assert_eq!(
            decide(Action::Attach, unknown(6), 1000, "queue"),
            None,
            "not permitted"
        );
        let staff = Rules::new(vec![Rule {
            title: "not the staff".to_string(),
            actions: vec![Action::Attach],
            groups: Some(vec![50]),
            ..Rule::default()
        }]);
        let forbidden = staff.decide(Action::Attach, &unknown(6), 6, &sensor("queue"));
        assert!(forbidden.is_some_and(|decided| decided.is_err()));
        let by_default = Err("not served".to_string());
        let refused = rules.register(&peer(5, &[]), &sensor("queue"), &by_default);
        assert_eq!(refused, by_default);
        assert!(rules
            .register(&peer(0, &[]), &sensor("secret"), &Ok(()))
            .is_err());
    }
}
