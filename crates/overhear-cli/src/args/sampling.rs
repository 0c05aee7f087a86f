// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of samplers.

use clap::Args;
use overhear_session::error::{ErrorKind, SessionError, Setting};
use overhear_session::sampling::SamplingRequest;

/// What is sampled, and when (docs/sampling.md).
#[derive(Clone, Debug, Args)]
pub(crate) struct SamplingArguments {
    /// Samples quantities: `cpu-time,page-faults,cycles,psi:cpu` (see docs/sampling.md; `overhear
    /// list --data-sources` has those of this machine). Needs --every or --per.
    #[arg(long, value_name = "LIST")]
    sample: Vec<String>,
    /// Takes a sample of --sample in each period: 1ms, 100us, 1s.
    #[arg(long, value_name = "PERIOD")]
    every: Option<String>,
    /// Takes a sample of --sample at points of the execution: `switch`, `wake-up`, `system-call`,
    /// `function=NAME`, `line=SOURCE:LINE`; per `thread`; or per `job`, or `job=RULE` where RULE is
    /// `yield`, `sleep`, `futex=ADDRESS`, `read=FD`, `function=NAME` or `call`. With --every, a
    /// period takes a sample only if there was none at a point.
    #[arg(long, value_name = "POINT")]
    per: Option<String>,
    /// Takes no sample at a point of --per within this time after the previous one of the thread.
    #[arg(long, value_name = "LENGTH")]
    min_interval: Option<String>,
}

impl SamplingArguments {
    /// The requested sampler.
    ///
    /// # Errors
    /// [`SessionError`] of usage if the options do not fit together.
    pub(crate) fn requests(&self) -> Result<Vec<SamplingRequest>, SessionError> {
        let request = SamplingRequest::of_options(
            &self.sample,
            self.every.as_deref(),
            self.per.as_deref(),
            self.min_interval.as_deref(),
        );
        let request = request.map_err(|error| {
            SessionError::new(ErrorKind::Usage, error.to_string()).about(Setting::Sampling)
        })?;
        Ok(request.into_iter().collect())
    }
}
