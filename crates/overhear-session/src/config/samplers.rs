// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[[sampler]]`: what is sampled in a run or a recording, and when.

use std::path::Path;

use overhear_sampling::sources::PLUGIN;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::error::{ErrorKind, SessionError};
use crate::sampling::SamplingRequest;

/// `[[sampler]]`: a sampler of the run; see docs/sampling.md. Give `every`, `per`, or both.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SamplerConfig {
    /// Its name, the sensor of its stream; `samples` by default.
    #[serde(default)]
    pub name: Option<String>,
    /// The quantities: `["cpu-time", "page-faults"]`. The file of `plugin:FILE.so` is relative to
    /// this file.
    pub sample: Vec<String>,
    /// The period: `"1ms"`.
    #[serde(default)]
    pub every: Option<String>,
    /// The point at which a sample is taken: `"switch"`, `"thread"`, `"job"`, `"job=yield"`.
    #[serde(default)]
    pub per: Option<String>,
    /// The least time between two samples of a thread at points.
    #[serde(default)]
    pub min_interval: Option<String>,
}

impl SamplerConfig {
    fn request(&self) -> Result<SamplingRequest, String> {
        let request = SamplingRequest::parse(
            &self.sample,
            self.every.as_deref(),
            self.per.as_deref(),
            self.min_interval.as_deref(),
        );
        let request = request.map_err(|error| error.to_string())?;
        let Some(name) = &self.name else {
            return Ok(request);
        };
        let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_allowed) {
            return Err(
                "the name has letters, digits, `_`, `-` and `.`, at least one and at most 64"
                    .to_owned(),
            );
        }
        Ok(request.named(name))
    }
}

/// The samplers of entries.
///
/// # Errors
/// A message about the first invalid entry.
pub(crate) fn samplers_of(entries: &[SamplerConfig]) -> Result<Vec<SamplingRequest>, String> {
    let mut samplers: Vec<SamplingRequest> = Vec::new();
    for (number, entry) in (1..).zip(entries) {
        let request = entry.request();
        let request = request.map_err(|message| match &entry.name {
            Some(name) => format!("sampler `{name}`: {message}"),
            None => format!("the sampler no. {number}: {message}"),
        })?;
        if samplers.iter().any(|other| other.name == request.name) {
            let name = &request.name;
            return Err(format!(
                "sampler `{name}` is listed twice; give each a `name`"
            ));
        }
        samplers.push(request);
    }
    Ok(samplers)
}

/// The samplers of the file `path`; empty if it has none. Files of shared objects are relative to
/// it.
///
/// # Errors
/// [`SessionError`] with a message that names the file and the entry.
pub fn read_any(path: &Path) -> Result<Vec<SamplingRequest>, SessionError> {
    let usage = |message: String| {
        SessionError::new(ErrorKind::Usage, format!("{}: {message}", path.display()))
    };
    let mut samplers = parse(&super::text_of(path)?).map_err(usage)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let names = samplers.iter_mut().flat_map(|sampler| &mut sampler.sample);
    for name in names {
        if let Some(plugin) = name.strip_prefix(PLUGIN) {
            *name = format!("{PLUGIN}{}", folder.join(plugin).display());
        }
    }
    Ok(samplers)
}

/// The samplers of a request and of its file. Names are those of streams, so each is there once.
///
/// # Errors
/// [`SessionError`] as from [`read_any`], or if two have the same name.
pub fn requested(
    own: Vec<SamplingRequest>,
    config: Option<&Path>,
) -> Result<Vec<SamplingRequest>, SessionError> {
    let of_file = config.map(read_any).transpose()?.unwrap_or_default();
    let mut all = own;
    for sampler in of_file {
        if all.iter().any(|other| other.name == sampler.name) {
            let name = &sampler.name;
            let message =
                format!("there are two samplers `{name}`; name that of the file otherwise");
            return Err(SessionError::new(ErrorKind::Usage, message));
        }
        all.push(sampler);
    }
    Ok(all)
}

fn parse(text: &str) -> Result<Vec<SamplingRequest>, String> {
    #[derive(Deserialize)]
    struct Entries {
        #[serde(default, rename = "sampler")]
        samplers: Vec<SamplerConfig>,
    }

    super::reject_unknown_entries(text)?;
    let entries: Entries = super::from_toml(text)?;
    samplers_of(&entries.samplers)
}

#[cfg(test)]
mod tests {
    use overhear_event::Nanos;

    use super::parse;
    use crate::sampling::{SamplingPoint, SamplingPolicy};

    #[test]
    fn samplers_are_read() {
        let text = "[[sampler]]\nsample = [\"cpu-time\", \"psi:cpu\"]\nevery = \"1ms\"\n\
                    [[sampler]]\nname = \"jobs\"\nsample = [\"cycles\"]\nper = \"job\"\n";
        let samplers = parse(text).unwrap();
        let names: Vec<_> = samplers.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["samples", "jobs"]);
        let period = Nanos::from_ms(1);
        assert_eq!(samplers[0].policy, SamplingPolicy::Periodic { period });
        assert_eq!(samplers[1].policy.point(), Some(&SamplingPoint::Job(None)));
        assert!(parse("[[constraint]]\n").unwrap().is_empty());
    }

    #[test]
    fn wrong_entries_are_named() {
        let error = |entry: &str| parse(&format!("[[sampler]]\n{entry}")).unwrap_err();
        let good = "sample = [\"a\"]\nevery = \"1ms\"\n";
        assert!(error("sample = []\nevery = \"1ms\"\n").starts_with("the sampler no. 1: "));
        assert!(error(&format!("{good}name = \"a b\"\n")).starts_with("sampler `a b`: the name"));
        assert!(error(&format!("{good}often = true\n")).contains("often"));
        let twice = error(&format!("{good}[[sampler]]\n{good}"));
        assert_eq!(
            twice,
            "sampler `samples` is listed twice; give each a `name`"
        );
        assert!(error("sample = [\"a\"]\nper = \"lunch\"\n").contains("`lunch` is no point"));
    }
}
