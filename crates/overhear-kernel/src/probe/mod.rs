// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Probe`]: a function or a static probe of programs, a tracepoint or function of the kernel, as
//! a kernel sensor.
//!
//! A probe is named by a text. It is resolved before anything is loaded: to a file, a place in the
//! file, and the fields of its elements ([`ResolvedProbe`]). If it cannot be resolved, the error is
//! a message that gives the reason.

mod elf;
mod file;
mod lines;
mod point;
mod signature;
mod symbols;
mod tracepoint;
mod usdt;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use overhear_event::kernel::events;
use overhear_event::TypeSchema;

use crate::streams::stride_of;
use point::{lay_out, PointValue};
use signature::SignatureError;
use symbols::ResolveError;
use tracepoint::{Tracepoint, TracepointError};
use usdt::MAX_ARGUMENTS;

pub(crate) use point::{KernelPoint, PointProgram};

/// Maximum number of probes of a monitor.
pub(crate) const MAX_PROBES: usize = 16;

/// Suffix of a text that names the return of a function.
const RETURN: &str = ":return";

/// A place that becomes a sensor while a monitor runs. In programs it is the entry of a function,
/// its return, or a static probe (USDT); no program needs to be built or started again. In the
/// kernel it is a tracepoint, or the entry or return of a function.
///
/// ```
/// use overhear_kernel::Probe;
///
/// let entry = Probe::function("/bin/server:handle_request")?;
/// assert_eq!(entry.sensor(), "probe/handle_request");
/// let back = Probe::function("/bin/server:handle_request:return")?;
/// assert_eq!(back.sensor(), "probe/handle_request/return");
/// let phase = Probe::usdt("/bin/server:app:phase")?;
/// assert_eq!(phase.sensor(), "usdt/app/phase");
/// assert!(Probe::function("/bin/server").is_err());
///
/// let fork = Probe::tracepoint("sched:sched_process_fork")?;
/// assert_eq!(fork.sensor(), "tracepoint/sched/sched_process_fork");
/// let send = Probe::kernel_function("tcp_sendmsg:return")?;
/// assert_eq!(send.sensor(), "kprobe/tcp_sendmsg/return");
/// # Ok::<(), overhear_kernel::ProbeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe(Point);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Point {
    Entry {
        file: String,
        symbol: String,
    },
    Return {
        file: String,
        symbol: String,
    },
    Static {
        file: String,
        provider: String,
        name: String,
    },
    /// `system` is `None` for a tracepoint without an event.
    Tracepoint {
        system: Option<String>,
        name: String,
    },
    KernelEntry {
        function: String,
    },
    KernelReturn {
        function: String,
    },
}

/// Why a probe is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The text does not have the form of a probe's name.
    #[error("{text:?} names no probe; write {form}")]
    Form {
        /// The text as given.
        text: String,
        /// The expected form.
        form: &'static str,
    },
    /// There is no such file.
    #[error(
        "there is no program {name:?} in PATH and no library of this name where the loader looks; give the path of \
         the file"
    )]
    NoFile {
        /// The name as given.
        name: String,
    },
    /// The file cannot have probes.
    #[error("{} cannot be probed, because {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The phrase after "because".
        why: String,
    },
    /// The file does not have this place.
    #[error("{} has no {what}; {advice}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The function or static probe.
        what: String,
        /// Similar names in the file, or a way to find the right one.
        advice: String,
    },
    /// Several functions have this name.
    #[error(
        "{what} of {} is ambiguous: there are {}; name one by its address or its whole name",
        path.display(),
        candidates.join(", ")
    )]
    Ambiguous {
        /// The file.
        path: PathBuf,
        /// The function.
        what: String,
        /// The matching functions, with their addresses.
        candidates: Vec<String>,
    },
    /// The kernel refuses.
    #[error("{what} of {} cannot be probed, because {why}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The function or static probe.
        what: String,
        /// The phrase after "because".
        why: String,
    },
    /// The kernel has no such tracepoint or function.
    #[error("this kernel has no {what}; {advice}")]
    NoPoint {
        /// The tracepoint or function.
        what: String,
        /// Similar names in the kernel.
        advice: String,
    },
    /// A tracepoint or function of the kernel cannot be a sensor.
    #[error("{what} of the kernel cannot be traced, because {why}")]
    NotTraceable {
        /// The tracepoint or function.
        what: String,
        /// The phrase after "because".
        why: String,
    },
    /// More probes than a monitor can have.
    #[error("a kernel monitor can have {MAX_PROBES} probes, and {given} were requested")]
    TooMany {
        /// Number of requested probes.
        given: usize,
    },
    /// The active backend cannot probe.
    #[error("probes need BPF, and so CAP_BPF and CAP_PERFMON: {why}")]
    NeedsBpf {
        /// The reason, with the backend that is active instead.
        why: String,
    },
}

/// A probe whose place is known. Holding one proves that the file had such a place when the probe
/// was resolved. It does not prove that the kernel permits the probe.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedProbe {
    pub(crate) probe: Probe,
    pub(crate) schema: Arc<TypeSchema>,
    pub(crate) target: ProbeTarget,
    /// Values of the point that its elements lack.
    pub(crate) left_out: Vec<String>,
}

/// The place that a program is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeTarget {
    /// The first instruction of a function, as an offset in a file.
    Function {
        path: PathBuf,
        offset: u64,
        returns: bool,
    },
    /// All places of a static probe.
    Static {
        path: PathBuf,
        provider: String,
        name: String,
    },
    /// A place in the kernel.
    Point(KernelPoint),
}

impl ResolvedProbe {
    /// Size of a slot of its rings, as a power of two.
    pub(crate) fn slot_shift(&self) -> u32 {
        stride_of(&self.schema).trailing_zeros()
    }

    /// The values that its elements lack, as a phrase.
    pub(crate) fn note(&self) -> Option<String> {
        let sensor = self.probe.sensor();
        let fields = self.left_out.join(", ");
        (!fields.is_empty()).then(|| {
            format!("elements of {sensor} have no {fields}, because no kind of field fits or the element is full")
        })
    }
}

impl Probe {
    /// A function: `FILE:SYMBOL` is its entry, `FILE:SYMBOL:return` its return. A file without `/`
    /// is a program in PATH, or a library where the loader finds it. The symbol may be a name as
    /// its language writes it (`shop::price(int)`), an address as `nm` prints it (`0x1139`), or an
    /// offset in the file (`+0x1139`); an address must be that of an instruction.
    /// `FILE:SOURCE@LINE` is the first instruction of a line of source (`server.c@120`); it needs
    /// debug information.
    ///
    /// # Errors
    /// [`ProbeError::Form`].
    pub fn function(text: &str) -> Result<Self, ProbeError> {
        let (rest, returns) = match text.strip_suffix(RETURN) {
            // `a::return` is a name.
            Some(rest) if !rest.ends_with(':') => (rest, true),
            _ => (text, false),
        };
        match split_last(rest) {
            Some((_, line)) if returns && symbols::is_line(line) => Err(ProbeError::Form {
                text: text.to_owned(),
                form: "FILE:SOURCE@LINE: a line has no return",
            }),
            Some((file, symbol)) if !file.is_empty() && !symbol.is_empty() => {
                let (file, symbol) = (file.to_owned(), symbol.to_owned());
                Ok(Self(match returns {
                    true => Point::Return { file, symbol },
                    false => Point::Entry { file, symbol },
                }))
            }
            _ => Err(ProbeError::Form {
                text: text.to_owned(),
                form: "FILE:SYMBOL or FILE:SYMBOL:return",
            }),
        }
    }

    /// A static probe: `FILE:PROVIDER:NAME`, with the file as for [`Self::function`].
    ///
    /// # Errors
    /// [`ProbeError::Form`].
    pub fn usdt(text: &str) -> Result<Self, ProbeError> {
        let mut parts = text.rsplitn(3, ':');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(name), Some(provider), Some(file))
                if [name, provider, file].iter().all(|part| !part.is_empty()) =>
            {
                Ok(Self(Point::Static {
                    file: file.to_owned(),
                    provider: provider.to_owned(),
                    name: name.to_owned(),
                }))
            }
            _ => Err(ProbeError::Form {
                text: text.to_owned(),
                form: "FILE:PROVIDER:NAME",
            }),
        }
    }

    /// A tracepoint of the kernel: `SYSTEM:NAME` has the fields of its event, as `perf` and
    /// `trace-cmd` show them; `NAME` alone the arguments that the kernel passes, also of
    /// tracepoints that have no event.
    ///
    /// # Errors
    /// [`ProbeError::Form`].
    pub fn tracepoint(text: &str) -> Result<Self, ProbeError> {
        let (system, name) = match text.split_once(':') {
            Some((system, name)) => (Some(system), name),
            None => (None, text),
        };
        let are_names = [name].into_iter().chain(system).all(is_kernel_name);
        if !are_names {
            return Err(ProbeError::Form {
                text: text.to_owned(),
                form: "SYSTEM:NAME, or NAME alone",
            });
        }
        Ok(Self(Point::Tracepoint {
            system: system.map(str::to_owned),
            name: name.to_owned(),
        }))
    }

    /// A function of the kernel: `FUNCTION` is its entry, `FUNCTION:return` its return.
    ///
    /// # Errors
    /// [`ProbeError::Form`].
    pub fn kernel_function(text: &str) -> Result<Self, ProbeError> {
        let (function, returns) = match text.strip_suffix(RETURN) {
            Some(function) => (function, true),
            None => (text, false),
        };
        if !is_kernel_name(function) {
            return Err(ProbeError::Form {
                text: text.to_owned(),
                form: "FUNCTION or FUNCTION:return",
            });
        }
        let function = function.to_owned();
        Ok(Self(match returns {
            true => Point::KernelReturn { function },
            false => Point::KernelEntry { function },
        }))
    }

    /// The return of a function of the kernel, by the name of the function alone.
    ///
    /// # Errors
    /// [`ProbeError::Form`].
    pub fn kernel_return(text: &str) -> Result<Self, ProbeError> {
        match Self::kernel_function(text)? {
            Self(Point::KernelEntry { function }) => Ok(Self(Point::KernelReturn { function })),
            probe => Ok(probe),
        }
    }

    /// The name of its streams; its events are `kernel:NAME`.
    #[must_use]
    pub fn sensor(&self) -> String {
        match &self.0 {
            Point::Entry { symbol, .. } => format!("probe/{symbol}"),
            Point::Return { symbol, .. } => format!("probe/{symbol}/return"),
            Point::Static { provider, name, .. } => format!("usdt/{provider}/{name}"),
            Point::Tracepoint {
                system: Some(system),
                name,
            } => format!("tracepoint/{system}/{name}"),
            Point::Tracepoint { system: None, name } => format!("tracepoint/{name}"),
            Point::KernelEntry { function } => format!("kprobe/{function}"),
            Point::KernelReturn { function } => format!("kprobe/{function}/return"),
        }
    }

    /// The name of the file, which distinguishes equal names in several files; empty for places of
    /// the kernel.
    #[must_use]
    pub fn instance(&self) -> String {
        let (Point::Entry { file, .. } | Point::Return { file, .. } | Point::Static { file, .. }) =
            &self.0
        else {
            return String::new();
        };
        let name = file.rsplit('/').next();
        name.unwrap_or(file).to_owned()
    }

    /// The schema of its elements. This reads the file, or the descriptions that the kernel
    /// exports.
    ///
    /// # Errors
    /// [`ProbeError`] if there is no such place.
    pub fn schema(&self) -> Result<TypeSchema, ProbeError> {
        let resolved = self.resolve()?;
        Ok(TypeSchema::clone(&resolved.schema))
    }

    /// Whether it is the entry or the return of a function of a program.
    pub(crate) const fn is_function(&self) -> bool {
        matches!(self.0, Point::Entry { .. } | Point::Return { .. })
    }

    /// The place, for error messages.
    pub(crate) fn what(&self) -> String {
        match &self.0 {
            Point::Entry { symbol, .. } if symbols::is_line(symbol) => {
                format!("code at line {symbol}")
            }
            Point::Entry { symbol, .. } | Point::Return { symbol, .. } => {
                format!("function {symbol}")
            }
            Point::Static { provider, name, .. } => format!("static probe {provider}:{name}"),
            Point::Tracepoint { system, name } => match system {
                Some(system) => format!("tracepoint {system}:{name}"),
                None => format!("tracepoint {name}"),
            },
            Point::KernelEntry { function } | Point::KernelReturn { function } => {
                format!("function {function}")
            }
        }
    }

    /// Finds the place.
    pub(crate) fn resolve(&self) -> Result<ResolvedProbe, ProbeError> {
        match &self.0 {
            Point::Entry { file, symbol } => self.resolve_function(file, symbol, false),
            Point::Return { file, symbol } => self.resolve_function(file, symbol, true),
            Point::Static {
                file,
                provider,
                name,
            } => self.resolve_static(file, provider, name),
            Point::Tracepoint {
                system: Some(system),
                name,
            } => self.resolve_tracepoint(system, name),
            Point::Tracepoint { system: None, name } => {
                let found = signature::of_tracepoint(name);
                let (values, arguments) = found.map_err(|none| self.no_signature(none))?;
                let program = PointProgram::RawTracepoint {
                    name: name.clone(),
                    arguments: arguments as u32,
                };
                Ok(self.with_layout(program, values, Vec::new()))
            }
            Point::KernelEntry { function } => {
                let values = signature::of_entry(function);
                let values = values.map_err(|none| self.no_signature(none))?;
                let function = function.clone();
                Ok(self.with_layout(PointProgram::Entry { function }, values, Vec::new()))
            }
            Point::KernelReturn { function } => {
                let values = signature::of_return(function);
                let values = values.map_err(|none| self.no_signature(none))?;
                let function = function.clone();
                Ok(self.with_layout(PointProgram::Return { function }, values, Vec::new()))
            }
        }
    }

    fn resolve_tracepoint(&self, system: &str, name: &str) -> Result<ResolvedProbe, ProbeError> {
        let found = Tracepoint::read(system, name).map_err(|none| match none {
            TracepointError::Missing(similar) => ProbeError::NoPoint {
                what: self.what(),
                advice: match similar.is_empty() {
                    true => "`perf list tracepoint` lists them".to_owned(),
                    false => format!("there is {}", similar.join(", ")),
                },
            },
            TracepointError::NotReadable(why) => ProbeError::NotTraceable {
                what: self.what(),
                why,
            },
        })?;
        let program = PointProgram::Tracepoint { id: found.id };
        Ok(self.with_layout(program, found.values, found.left_out))
    }

    fn no_signature(&self, none: SignatureError) -> ProbeError {
        let what = self.what();
        match none {
            SignatureError::Missing(similar) => ProbeError::NoPoint {
                what,
                advice: match similar.is_empty() {
                    true => "it may be inlined into its callers; /proc/kallsyms lists the functions that exist"
                        .to_owned(),
                    false => format!("there is {}", similar.join(", ")),
                },
            },
            SignatureError::NotTraceable(why) => ProbeError::NotTraceable { what, why },
            SignatureError::NoTypes => ProbeError::NotTraceable {
                what,
                why: "this kernel does not describe its types (/sys/kernel/btf/vmlinux is missing)"
                    .to_owned(),
            },
        }
    }

    fn with_layout(
        &self,
        program: PointProgram,
        values: Vec<PointValue>,
        mut left_out: Vec<String>,
    ) -> ResolvedProbe {
        let laid = lay_out(program, &self.sensor(), values);
        left_out.extend(laid.left_out);
        ResolvedProbe {
            probe: self.clone(),
            schema: Arc::new(laid.schema),
            target: ProbeTarget::Point(laid.point),
            left_out,
        }
    }

    fn resolve_function(
        &self,
        file: &str,
        symbol: &str,
        returns: bool,
    ) -> Result<ResolvedProbe, ProbeError> {
        let path = find(file)?;
        let offset = match symbols::offset_of(&path, symbol) {
            Ok(offset) => offset,
            Err(unresolved) => return Err(self.error(path, unresolved)),
        };
        let schema = match returns {
            true => events::probe_return_schema(),
            false => events::probe_schema(),
        };
        Ok(ResolvedProbe {
            probe: self.clone(),
            schema: Arc::new(schema),
            target: ProbeTarget::Function {
                path,
                offset,
                returns,
            },
            left_out: Vec::new(),
        })
    }

    fn error(&self, path: PathBuf, unresolved: ResolveError) -> ProbeError {
        let what = self.what();
        match unresolved {
            ResolveError::File(why) => ProbeError::File { path, why },
            ResolveError::Missing(similar) => ProbeError::Missing {
                path,
                what,
                advice: match similar.is_empty() {
                    true => "see `nm -DC --defined-only`, or give the address of one that has no name".to_owned(),
                    false => format!("there is {}", similar.join(", ")),
                },
            },
            ResolveError::Ambiguous(candidates) => ProbeError::Ambiguous {
                path,
                what,
                candidates,
            },
            ResolveError::NoCode => ProbeError::Missing {
                path,
                what: what.replacen("function", "code at", 1),
                advice: "an address is what `nm` prints, and an offset in the file begins with `+`"
                    .to_owned(),
            },
            ResolveError::NoLine(advice) => ProbeError::Missing { path, what, advice },
            ResolveError::Indirect => ProbeError::File {
                path,
                why: format!(
                    "{what} is an indirect function, which only selects the function to call; name that function, or \
                     give its address"
                ),
            },
        }
    }

    fn resolve_static(
        &self,
        file: &str,
        provider: &str,
        name: &str,
    ) -> Result<ResolvedProbe, ProbeError> {
        let path = find(file)?;
        let arguments = match usdt::arguments(&path, provider, name) {
            Ok(Ok(arguments)) => arguments,
            Ok(Err(others)) => {
                let advice = match &others[..] {
                    [] => "it has no static probe at all (`readelf -n` lists them)".to_owned(),
                    others => format!("there is {}", others.join(", ")),
                };
                let what = self.what();
                return Err(ProbeError::Missing { path, what, advice });
            }
            Err(why) => return Err(ProbeError::File { path, why }),
        };
        if arguments.len() > MAX_ARGUMENTS {
            let why = format!(
                "{} has {} arguments, and at most {MAX_ARGUMENTS} can be fetched",
                self.what(),
                arguments.len()
            );
            return Err(ProbeError::File { path, why });
        }
        let signs = arguments.iter().map(|argument| argument.is_signed);
        Ok(ResolvedProbe {
            probe: self.clone(),
            schema: Arc::new(events::static_probe_schema(signs)),
            target: ProbeTarget::Static {
                path,
                provider: provider.to_owned(),
                name: name.to_owned(),
            },
            left_out: Vec::new(),
        })
    }
}

/// Whether this could be a name in the kernel; it becomes a part of a path.
fn is_kernel_name(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    !text.is_empty() && !text.starts_with('.') && text.chars().all(is_part)
}

/// The distance of a global variable of a program from the begin of the program's code; the phrase
/// in the error follows "because".
pub(crate) fn variable(program: &Path, name: &str) -> Result<u64, String> {
    symbols::variable(program, name)
}

/// Finds the file that a name means.
pub(crate) fn find(name: &str) -> Result<PathBuf, ProbeError> {
    file::find(name).ok_or_else(|| ProbeError::NoFile {
        name: name.to_owned(),
    })
}

/// Splits at the last single colon: `::` is a part of names.
fn split_last(text: &str) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    let is_colon = |at: usize| bytes.get(at) == Some(&b':');
    let alone =
        |at: &usize| is_colon(*at) && !is_colon(at + 1) && !at.checked_sub(1).is_some_and(is_colon);
    let at = (0..bytes.len()).rev().find(alone)?;
    Some((&text[..at], &text[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::{split_last, Probe, ProbeError};

    #[test]
    fn last_single_colon_separates_file_and_name() {
        for (text, file, name) in [
            ("/bin/a server:handle", "/bin/a server", "handle"),
            ("/bin/a:b:handle", "/bin/a:b", "handle"),
            ("libc.so.6:malloc", "libc.so.6", "malloc"),
            (
                "a:shop::price(int, shop::Item)",
                "a",
                "shop::price(int, shop::Item)",
            ),
            ("a:0x1234", "a", "0x1234"),
            ("a:", "a", ""),
        ] {
            assert_eq!(split_last(text), Some((file, name)), "{text}");
        }
        assert_eq!(split_last("/bin/a"), None);
        assert_eq!(split_last("a::b"), None);
        let probe = Probe::function("a:shop::price:return").unwrap();
        assert_eq!(probe.sensor(), "probe/shop::price/return");
        let probe = Probe::function("/x/a:shop::return").unwrap();
        assert_eq!(probe.sensor(), "probe/shop::return");
        assert_eq!(probe.instance(), "a");
    }

    #[test]
    fn missing_static_probe_lists_others() {
        let probe = Probe::usdt("libc.so.6:libc:there_is_no_such_probe").unwrap();
        let error = probe.resolve().unwrap_err();
        let ProbeError::Missing { advice, .. } = &error else {
            panic!("{error:?}");
        };
        assert!(
            advice.contains("libc:setjmp") || advice.contains("no static probe"),
            "{advice}"
        );
    }
}
