// SPDX-License-Identifier: MIT OR Apache-2.0
//! What processes leave: reads results files, and merges them by variable.
//!
//! A file is memory of another process, which may have been killed at any moment, or may be
//! hostile. So no length or index of it is used before it is checked, and a part that cannot be
//! understood is a fault of the file, counted and named.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::estimate::{SegmentEstimate, Stratum};
use crate::layout::{
    Account, ChunkHeader, FileHeader, FunctionPrice, FunctionWords, CHUNK_BLOCK,
    CHUNK_HEADER_BYTES, CHUNK_MODULE, FILE_ENDING, FILE_MAGIC, FILE_VERSION, PAGE, RANGE_BYTES,
    STATE_FREE, STATE_UNLOADED, WORDS_BYTES,
};
use crate::runtime::Storage;

/// Standard deviations of the interval of 95 %.
const TWO_SIDED_95: f64 = 1.96;

/// A variable as the source declares it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Declaration {
    /// Source file.
    pub file: String,
    /// Line of the declaration.
    pub line: u32,
    /// Linkage name of the function that declares it; empty for globals and members.
    pub function: String,
    /// Its name; of a member, `TYPE.NAME`.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Name of its type.
    pub type_name: String,
    /// Width of its type.
    pub bits: u32,
    /// Whether its type has no negative values.
    pub is_unsigned: bool,
}

/// What a variable is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Outside of functions.
    Global,
    /// Static in a function.
    Static,
    /// Of one call of a function.
    Local,
    /// A parameter of a function.
    Parameter,
    /// A field of a struct or class.
    Member,
}

impl Declaration {
    /// The smallest and the largest value of the type.
    #[must_use]
    pub const fn bounds(&self) -> (i128, i128) {
        if self.is_unsigned {
            (0, (1 << self.bits) - 1)
        } else {
            (-(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1)
        }
    }

    const fn storage(&self) -> Storage {
        match (self.bits, self.is_unsigned) {
            (64, true) => Storage::Unsigned,
            (64, false) => Storage::Signed,
            _ => Storage::Width,
        }
    }
}

/// What was observed of a variable.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// Smallest and largest value; `None` if no update was recorded.
    pub range: Option<(i128, i128)>,
    /// Updates recorded.
    pub updates: u64,
    /// Estimated updates in all.
    pub estimated: f64,
    /// Variance of the estimate.
    pub variance: f64,
    /// Farthest distance of the truth from the estimate by updates outside of stretches.
    pub doubt: f64,
    /// Passes of the functions that update it.
    pub passes: f64,
    /// Those of them that were monitored.
    pub monitored: f64,
}

impl Observed {
    /// The interval of 95 % of the updates in all. No fewer than were recorded.
    #[must_use]
    pub fn interval(&self) -> (f64, f64) {
        let half = TWO_SIDED_95 * self.variance.max(0.0).sqrt() + self.doubt;
        (
            (self.estimated - half).max(self.updates as f64),
            self.estimated + half,
        )
    }

    /// Share of the passes that were monitored; `None` if its functions never ran.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        (self.passes > 0.0).then(|| (self.monitored / self.passes).min(1.0))
    }

    fn merge(&mut self, other: &Self) {
        self.range = match (self.range, other.range) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (one, other) => one.or(other),
        };
        self.updates += other.updates;
        self.estimated += other.estimated;
        self.variance += other.variance;
        self.doubt += other.doubt;
        self.passes += other.passes;
        self.monitored += other.monitored;
    }
}

/// What a function cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FunctionCost {
    /// Updates recorded.
    pub updates: u64,
    /// Nanoseconds for each update.
    pub price_ns: f64,
    /// Standard error of the price.
    pub error_ns: f64,
    /// Pairs of stretches behind the price.
    pub pairs: f64,
    /// Passes in all.
    pub passes: f64,
    /// Monitored passes.
    pub monitored: f64,
}

/// What processes used, in sum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessCost {
    /// CPU time, with everything that observes.
    pub cpu_ns: f64,
    /// Estimated cost of recorded updates.
    pub updates_ns: f64,
    /// Estimated cost of slow calls, control threads and plain copies.
    pub machinery_ns: f64,
}

/// The results of all processes that were read.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// By declaration.
    pub variables: BTreeMap<Declaration, Observed>,
    /// By linkage name.
    pub functions: BTreeMap<String, FunctionCost>,
    /// Number of processes.
    pub processes: u64,
    /// Number of processes that were controlled by a budget, and ended before the first round.
    pub uncontrolled: u64,
    /// What they used.
    pub cost: ProcessCost,
    /// Libraries that were unloaded while their process went on.
    pub unloaded: Vec<String>,
    /// Blocks of threads for which no memory was left in the folder.
    pub blocks_lost: u64,
    /// Modules beyond the number that a process can have.
    pub modules_refused: u64,
    /// Files, or parts of them, that cannot be understood.
    pub faults: Vec<String>,
}

impl Results {
    /// Whether nothing is known to be missing except what the budget left out.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.blocks_lost == 0 && self.modules_refused == 0 && self.faults.is_empty()
    }

    /// Reads all results files of a folder.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn read_folder(folder: &Path) -> io::Result<Self> {
        let mut results = Self::default();
        for path in files(folder)? {
            results.read_file(&path);
        }
        Ok(results)
    }

    /// Adds the results of a file. What cannot be read is a fault.
    pub fn read_file(&mut self, path: &Path) {
        let added = fs::read(path)
            .map_err(|error| error.to_string())
            .and_then(|bytes| self.add(&bytes).map_err(str::to_owned));
        if let Err(fault) = added {
            self.faults.push(format!("{}: {fault}", path.display()));
        }
    }

    /// Adds the results of a file's bytes.
    ///
    /// # Errors
    /// They are no results of this version.
    pub fn add(&mut self, bytes_untrusted: &[u8]) -> Result<(), &'static str> {
        let header: FileHeader = read(bytes_untrusted, 0).ok_or("the file has no header")?;
        if header.magic != FILE_MAGIC {
            return Err("it is no file of results");
        }
        if header.version != FILE_VERSION {
            return Err("it is of another version of Overhear");
        }
        self.processes += 1;
        self.cost.cpu_ns += finite(header.cpu_ns);
        self.cost.updates_ns += finite(header.updates_ns);
        self.cost.machinery_ns += finite(header.machinery_ns);
        self.blocks_lost += header.blocks_lost;
        self.modules_refused += u64::from(header.modules_refused);
        if header.mode == crate::layout::Mode::Budget as u32 && header.rounds == 0 {
            self.uncontrolled += 1;
        }
        let mut modules: BTreeMap<u32, ModuleText> = BTreeMap::new();
        let mut offset = PAGE;
        let mut fault = None;
        while let Some(chunk) = read::<ChunkHeader>(bytes_untrusted, offset) {
            let length = usize::try_from(chunk.bytes).unwrap_or(usize::MAX);
            if chunk.kind == 0 {
                // The process ended while it filled the chunk: nothing ran with it.
                break;
            }
            let end = offset
                .checked_add(length)
                .filter(|end| *end <= bytes_untrusted.len());
            let Some(end) = end.filter(|_| length >= PAGE && length % PAGE == 0) else {
                return Err("a part of it has an impossible length");
            };
            let content = &bytes_untrusted[offset + CHUNK_HEADER_BYTES..end];
            let done = match chunk.kind {
                CHUNK_MODULE => ModuleText::parse(&chunk, content).map(|module| {
                    if chunk.state == STATE_UNLOADED {
                        self.unloaded.push(module.path.clone());
                    }
                    modules.insert(chunk.module, module);
                }),
                CHUNK_BLOCK if chunk.state == STATE_FREE => Some(()),
                CHUNK_BLOCK => modules
                    .get(&chunk.module)
                    .and_then(|module| self.add_block(module, &chunk, content)),
                _ => None,
            };
            if done.is_none() {
                fault = Some("a part of it contradicts itself");
            }
            offset = end;
        }
        self.add_unused(&modules);
        fault.map_or(Ok(()), Err)
    }

    /// Variables of modules in which nothing ran are results, too: never updated.
    fn add_unused(&mut self, modules: &BTreeMap<u32, ModuleText>) {
        for module in modules.values() {
            for object in &module.objects {
                for variable in &object.variables {
                    self.variables.entry(variable.clone()).or_default();
                }
            }
            for (number, name) in module.function_names().enumerate() {
                let cost = self.functions.entry(name.to_owned()).or_default();
                if let Some(price) = module.prices.get(number).filter(|p| p.price_ns.is_finite()) {
                    if price.pairs >= cost.pairs {
                        cost.price_ns = price.price_ns;
                        cost.error_ns = price.error_ns;
                        cost.pairs = price.pairs;
                    }
                }
            }
        }
    }

    fn add_block(
        &mut self,
        module: &ModuleText,
        chunk: &ChunkHeader,
        content: &[u8],
    ) -> Option<()> {
        let image_bytes = usize::try_from(chunk.first_bytes).ok()?;
        let image = content.get(..image_bytes)?;
        let accounts = module.function_names().count() * size_of::<Account>();
        let estimates = content.get(image_bytes.checked_add(accounts)?..)?;
        let (mut number, mut first_segment) = (0, 0);
        for object in &module.objects {
            let block = image.get(object.offset..)?;
            let mut functions = Vec::with_capacity(object.functions.len());
            for (index, name) in object.functions.iter().enumerate() {
                let words: FunctionWords = read(block, index * WORDS_BYTES)?;
                let place = number * size_of::<Account>();
                let account: Account = read(content.get(image_bytes..)?, place)?;
                number += 1;
                let counts = FunctionCounts::new(&words, &account);
                let cost = self.functions.entry(name.clone()).or_default();
                cost.updates += u64::try_from(words.recorded).unwrap_or(0);
                cost.passes += counts.passes;
                cost.monitored += counts.monitored;
                functions.push(counts);
            }
            let start = first_segment * size_of::<SegmentEstimate>();
            self.add_variables(object, &functions, block, estimates.get(start..)?)?;
            first_segment += object.segments.len();
        }
        Some(())
    }

    fn add_variables(
        &mut self,
        object: &ObjectText,
        functions: &[FunctionCounts],
        block: &[u8],
        estimates: &[u8],
    ) -> Option<()> {
        let ranges = functions.len() * WORDS_BYTES;
        let counters = ranges + object.variables.len() * RANGE_BYTES;
        let mut parts: BTreeMap<(usize, usize), Part> = BTreeMap::new();
        for (index, segment) in object.segments.iter().enumerate() {
            let count: u64 = read(block, counters + index * 8)?;
            let stored: SegmentEstimate = read(estimates, index * size_of::<SegmentEstimate>())?;
            let estimate = functions.get(segment.function)?.complete(stored, count);
            for (variable, number) in &segment.counts {
                let part = parts.entry((*variable, segment.function)).or_default();
                part.add(count, &estimate, *number);
            }
        }
        let mut observed = vec![Observed::default(); object.variables.len()];
        for ((variable, function), part) in parts {
            let counts = functions.get(function)?;
            observed.get_mut(variable)?.merge(&Observed {
                range: None,
                updates: part.updates,
                estimated: part.estimated.max(part.updates as f64),
                variance: part.deviation * part.deviation,
                doubt: part.doubt,
                passes: counts.passes,
                monitored: counts.monitored,
            });
        }
        for (index, (variable, mut observed)) in object.variables.iter().zip(observed).enumerate() {
            let low: u64 = read(block, ranges + index * RANGE_BYTES)?;
            let high: u64 = read(block, ranges + index * RANGE_BYTES + 8)?;
            observed.range = variable.storage().range([low, high]);
            self.variables
                .entry(variable.clone())
                .or_default()
                .merge(&observed);
        }
        Some(())
    }
}

/// Paths of the results files of a folder, in the order of their names.
///
/// # Errors
/// The folder cannot be listed.
pub fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == FILE_ENDING) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Counts of a function in one block.
struct FunctionCounts {
    passes: f64,
    monitored: f64,
    /// What was not in a stratum yet.
    rest: Rest,
}

/// The period since the last stratum.
enum Rest {
    /// Nothing ran.
    Nothing,
    /// Some of it was monitored.
    Monitored(Stratum),
    /// None of it was: passes for each pass before it.
    Unmonitored(f64),
}

impl FunctionCounts {
    fn new(words: &FunctionWords, account: &Account) -> Self {
        // What ended threads have left has totals only, and all of it is in strata.
        let is_ended = account.length == 0;
        let (passes, monitored) = if is_ended {
            (account.passes, account.monitored)
        } else {
            account.passes_now(words)
        };
        let (since, until) = (&account.stratum_start, &account.counts_now(words));
        let new = until.passes.saturating_sub(since.passes).max(0) as f64;
        let rest = match Stratum::between(since, until) {
            _ if is_ended => Rest::Nothing,
            Some(stratum) => Rest::Monitored(stratum),
            None if since.passes > 0 => Rest::Unmonitored(new / since.passes as f64),
            None => Rest::Nothing,
        };
        let passes = passes.max(0) as f64;
        Self {
            passes,
            monitored: (monitored.max(0) as f64).min(passes),
            rest,
        }
    }

    /// The estimate of a segment with the period since the last stratum.
    fn complete(&self, stored: SegmentEstimate, count: u64) -> SegmentEstimate {
        let mut estimate = SegmentEstimate {
            count: stored.count.min(count),
            total: finite(stored.total).max(0.0),
            variance: finite(stored.variance).max(0.0),
            doubt: finite(stored.doubt).max(0.0),
        };
        match &self.rest {
            Rest::Nothing => {}
            Rest::Monitored(stratum) => estimate.add(count, stratum),
            Rest::Unmonitored(by) => estimate.extend(*by),
        }
        estimate
    }
}

/// The updates of one variable in one function of a block.
#[derive(Clone, Copy, Default)]
struct Part {
    updates: u64,
    estimated: f64,
    /// Standard deviation: segments of one function vary together.
    deviation: f64,
    doubt: f64,
}

impl Part {
    /// Adds a segment with `number` updates of the variable.
    fn add(&mut self, count: u64, estimate: &SegmentEstimate, number: u64) {
        self.updates = self.updates.saturating_add(count.saturating_mul(number));
        self.estimated += estimate.total * number as f64;
        self.deviation += estimate.variance.sqrt() * number as f64;
        self.doubt += estimate.doubt * number as f64;
    }
}

struct ModuleText {
    path: String,
    objects: Vec<ObjectText>,
    prices: Vec<FunctionPrice>,
}

struct ObjectText {
    offset: usize,
    functions: Vec<String>,
    variables: Vec<Declaration>,
    segments: Vec<Segment>,
}

struct Segment {
    function: usize,
    counts: Vec<(usize, u64)>,
}

impl ModuleText {
    fn parse(chunk: &ChunkHeader, content: &[u8]) -> Option<Self> {
        let functions = usize::try_from(chunk.functions).ok()?;
        let prices_bytes = functions.checked_mul(size_of::<FunctionPrice>())?;
        let rest = content.get(prices_bytes..)?;
        let prices = (0..functions)
            .map(|index| read(content, index * size_of::<FunctionPrice>()))
            .collect::<Option<Vec<FunctionPrice>>>()?;
        let path_bytes = usize::try_from(chunk.first_bytes).ok()?;
        let path = String::from_utf8_lossy(rest.get(..path_bytes)?).into_owned();
        let text_bytes = usize::try_from(chunk.second).ok()?;
        let text = rest.get(path_bytes..)?.get(..text_bytes)?;
        let text = String::from_utf8_lossy(text);
        let mut objects: Vec<ObjectText> = Vec::new();
        for line in text.lines() {
            let mut fields = line.split('\t');
            match fields.next()? {
                "O" => objects.push(ObjectText {
                    offset: fields.next()?.parse().ok()?,
                    functions: Vec::new(),
                    variables: Vec::new(),
                    segments: Vec::new(),
                }),
                "M" => {}
                "F" => {
                    let _name = fields.next()?;
                    objects
                        .last_mut()?
                        .functions
                        .push(fields.next()?.to_owned());
                }
                "V" => objects
                    .last_mut()?
                    .variables
                    .push(declaration(&mut fields)?),
                "C" => {
                    let function = fields.next()?.parse().ok()?;
                    let count = |field: &str| {
                        let (variable, updates) = field.split_once('*')?;
                        Some((variable.parse().ok()?, updates.parse().ok()?))
                    };
                    let counts = fields.map(count).collect::<Option<Vec<_>>>()?;
                    objects
                        .last_mut()?
                        .segments
                        .push(Segment { function, counts });
                }
                _ => return None,
            }
        }
        Some(Self {
            path,
            objects,
            prices,
        })
    }

    fn function_names(&self) -> impl Iterator<Item = &str> {
        self.objects
            .iter()
            .flat_map(|object| object.functions.iter().map(String::as_str))
    }
}

fn declaration<'a>(fields: &mut impl Iterator<Item = &'a str>) -> Option<Declaration> {
    let kind = match fields.next()? {
        "g" => Kind::Global,
        "s" => Kind::Static,
        "l" => Kind::Local,
        "p" => Kind::Parameter,
        "m" => Kind::Member,
        _ => return None,
    };
    let name = fields.next()?.to_owned();
    let function = fields.next()?.to_owned();
    let file = fields.next()?.to_owned();
    let line = fields.next()?.parse().ok()?;
    let type_name = fields.next()?.to_owned();
    let bits = fields
        .next()?
        .parse()
        .ok()
        .filter(|bits| (1..=64).contains(bits))?;
    let is_unsigned = fields.next()? == "u";
    Some(Declaration {
        file,
        line,
        function,
        name,
        kind,
        type_name,
        bits,
        is_unsigned,
    })
}

fn finite(value: f64) -> f64 {
    if value.is_finite() {
        value
    } else {
        0.0
    }
}

/// Types that any bytes are a value of.
trait Plain: Copy {}
impl Plain for u64 {}
impl Plain for FileHeader {}
impl Plain for ChunkHeader {}
impl Plain for Account {}
impl Plain for FunctionWords {}
impl Plain for FunctionPrice {}
impl Plain for SegmentEstimate {}

/// A value at a place, if the bytes reach so far.
fn read<T: Plain>(bytes: &[u8], offset: usize) -> Option<T> {
    let end = offset.checked_add(size_of::<T>())?;
    let bytes = bytes.get(offset..end)?;
    // SAFETY: the slice has the size of T, and any bytes are a value of a `Plain` type.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Collects results while processes come and go, so that a build of thousands of processes does not
/// fill the folder.
#[derive(Debug)]
pub struct Collector {
    folder: PathBuf,
    results: Results,
}

impl Collector {
    /// For a folder.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            results: Results::default(),
        }
    }

    /// Takes in the files of processes that have ended, and removes them.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn collect_ended(&mut self) -> io::Result<()> {
        for path in files(&self.folder)? {
            if has_ended(&path) {
                self.results.read_file(&path);
                // A file that stays would be counted twice.
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// The results of all processes; of those that still run, up to now, with their number.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn finish(mut self) -> io::Result<(Results, usize)> {
        self.collect_ended()?;
        let running = files(&self.folder)?;
        for path in &running {
            self.results.read_file(path);
        }
        Ok((self.results, running.len()))
    }
}

/// Whether the process of a file has ended. Of a process in another namespace it is not known.
fn has_ended(path: &Path) -> bool {
    use std::io::Read as _;
    use std::os::unix::fs::MetadataExt as _;

    let mut bytes = [0; size_of::<FileHeader>()];
    let read_whole = fs::File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    let header = read::<FileHeader>(&bytes, 0).filter(|h| h.magic == FILE_MAGIC);
    let (Ok(()), Some(header)) = (read_whole, header) else {
        return false;
    };
    let own = fs::metadata("/proc/self/ns/pid").map(|namespace| namespace.ino());
    if own.ok() != Some(header.pid_namespace) {
        return false;
    }
    let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", header.pid)) else {
        return true;
    };
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split(' ')
        .collect();
    // After the name come an empty text, the state, and then field 4 on.
    let is_zombie = matches!(fields.get(1), Some(&("Z" | "X")));
    let start = fields.get(20).and_then(|field| field.parse::<u64>().ok());
    is_zombie || start != Some(header.start_ticks)
}
