// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samplers that a directory owns: what a monitor receives, and the switch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use overhear::{
    CounterError, DynamicSampler, Nanos, RegisterSamplerError, Sampler, SamplerBuilder,
    SamplerRequest, SamplerThreadError,
};
use overhear_directory::{Begin, Directory, MonitorConnection, Query, SOCKET_VARIABLE};
use overhear_event::{
    GapCause, Inbox, SampleHeader, SampleLayout, SamplePoint, Source, SourceError,
    StreamDescriptor, StreamId, Timestamp,
};

/// The samples of a monitor.
#[derive(Debug, Default)]
struct Received {
    stream: Option<(Arc<StreamDescriptor>, SampleLayout)>,
    samples: Vec<(Timestamp, SampleHeader, Vec<u64>)>,
    missed: u64,
}

impl Inbox for Received {
    fn open(&mut self, stream: Arc<StreamDescriptor>) {
        let layout = SampleLayout::of(&stream.schema).expect("samples");
        self.stream = Some((stream, layout));
    }

    fn element(&mut self, _: StreamId, _: u64, time: Timestamp, payload: &[u8]) {
        let (stream, layout) = self.stream.as_ref().expect("it is open");
        let header = layout.header(&stream.schema, payload).expect("a header");
        let counts = layout.quantities().iter().map(|quantity| {
            assert!(quantity.is_count());
            let value = stream.schema.read(quantity.field, payload);
            value.and_then(|value| value.as_u64()).expect("a count")
        });
        self.samples.push((time, header, counts.collect()));
    }

    fn gap(&mut self, _: StreamId, _: u64, missed: u64, _: GapCause) {
        self.missed += missed;
    }

    fn complain(&mut self, complaint: SourceError) {
        panic!("{complaint:?}");
    }

    fn close(&mut self, _: StreamId) {}
}

#[track_caller]
fn eventually(mut ask: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !ask() {
        assert!(begun.elapsed() < Duration::from_secs(30), "too late");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Pages of 4 KiB that were never touched.
struct Pages(*mut u8, usize);

impl Pages {
    const BYTES: usize = 4096;

    fn new(number: usize) -> Self {
        // SAFETY: a fresh private map; the advice concerns it alone.
        let address = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let bytes = number * Self::BYTES;
            let address = libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0);
            assert_ne!(address, libc::MAP_FAILED);
            // Not supported by all kernels; then there are no large pages either.
            let _ = libc::madvise(address, bytes, libc::MADV_NOHUGEPAGE);
            address
        };
        Self(address.cast(), number)
    }

    fn touch(&self, range: std::ops::Range<usize>) {
        assert!(range.end <= self.1);
        for page in range {
            // SAFETY: within the map.
            unsafe { self.0.add(page * Self::BYTES).write_volatile(1) };
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the map is not used any more.
        unsafe { libc::munmap(self.0.cast(), self.1 * Self::BYTES) };
    }
}

/// Whether this user may count here.
fn may_count() -> bool {
    match Sampler::builder("probe")
        .counters(["task-clock"])
        .register()
    {
        Ok(_) => true,
        Err(reason) => {
            println!("skipped: {reason}");
            false
        }
    }
}

/// One test, because the environment contains the address of the directory.
#[test]
fn samples_arrive_and_are_complete() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("directory.sock");
    let directory = Directory::builder().standalone().start(&socket).unwrap();
    std::env::set_var(SOCKET_VARIABLE, directory.socket());
    if !may_count() {
        return;
    }
    jobs_have_their_own_counts(&directory);
    samples_are_left_out_within_the_period(&directory);
    switched_off_sampler_takes_none(&directory);
    forked_child_counts_itself_after_registration();
}

fn jobs_have_their_own_counts(directory: &Directory) {
    const FAULTS: SamplerBuilder<'static, 2> =
        Sampler::builder("faults").counters(["minor-faults", "task-clock"]);
    let mut sampler = FAULTS.register().unwrap();
    assert!(
        sampler.is_connected(),
        "{:?}",
        sampler.not_connected_reason()
    );
    let monitor = MonitorConnection::connect(directory.socket()).unwrap();
    let query = Query::parse("faults").unwrap();
    let mut source = monitor.attach(query, Begin::Now).unwrap();
    let mut received = Received::default();

    let pages = Pages::new(64);
    // The pages of the code that touches.
    pages.touch(0..1);
    assert!(sampler.sample());
    pages.touch(1..11);
    {
        let mut job = sampler.job();
        pages.touch(11..31);
        assert!(job.sample(), "a sample within the job");
        pages.touch(31..36);
    }
    pages.touch(36..39);
    assert!(
        sampler.job_end(),
        "a job that began where the last one ended"
    );
    assert!(sampler.sample());
    assert_eq!((sampler.written(), sampler.failed()), (5, 0));

    eventually(|| {
        source.poll(&mut received).unwrap();
        received.samples.len() == 5
    });
    assert_eq!(received.missed, 0);
    let points = received.samples.iter().map(|(_, header, _)| header.point);
    let points: Vec<_> = points.map(Option::unwrap).collect();
    let (program, job_end) = (SamplePoint::Program, SamplePoint::JobEnd);
    assert_eq!(points, [program, program, job_end, job_end, program]);
    // SAFETY: both calls have no preconditions.
    let (tid, cpus) = unsafe { (libc::gettid(), libc::sysconf(libc::_SC_NPROCESSORS_CONF)) };
    for (_, header, _) in &received.samples {
        assert_eq!((header.tid, header.pid), (tid as u32, std::process::id()));
        assert!(i64::from(header.cpu) < cpus);
    }
    // A kernel that moves pages at this moment adds faults: lower limits only.
    let faults: Vec<u64> = received
        .samples
        .iter()
        .map(|(.., counts)| counts[0])
        .collect();
    let least = [1, 30, 25, 3, 8];
    assert!(
        faults
            .iter()
            .zip(least)
            .all(|(faults, least)| *faults >= least),
        "{faults:?}"
    );
    // The samples of each kind divide the same time, so their sums differ by what was between.
    assert!(
        faults[0] + faults[1] + faults[4] >= faults[2] + faults[3],
        "{faults:?}"
    );
    let duration = |index: usize| received.samples[index].1.duration_ns;
    let time = |index: usize| received.samples[index].0.as_monotonic_ns();
    assert!(duration(1) > 0 && duration(2) > 0);
    // The third sample of the program begins where the second has ended.
    assert!(duration(4) <= time(4) - time(1) + duration(1));
    assert!(received.samples[2].2[1] <= received.samples[2].1.duration_ns + 1_000_000);
}

fn samples_are_left_out_within_the_period(directory: &Directory) {
    let builder = Sampler::builder("rare").counters(["task-clock"]);
    let mut sampler = builder.every(Nanos::from_ms(3_600_000)).register().unwrap();
    assert!(sampler.sample(), "the first is due at once");
    assert!(!sampler.sample(), "an hour has not passed");
    assert!(sampler.job_end(), "ends of jobs are always sampled");
    assert_eq!(sampler.written(), 2);
    let mut sampler = builder.every(Nanos::from_ms(2)).register().unwrap();
    assert!(sampler.sample());
    eventually(|| sampler.sample());
    drop(sampler);
    let _ = directory;
}

fn switched_off_sampler_takes_none(directory: &Directory) {
    let mut sampler = Sampler::builder("switched")
        .counters(["task-clock"])
        .register()
        .unwrap();
    let switch = |enabled| {
        let mut monitor = MonitorConnection::connect(directory.socket()).unwrap();
        let query = Query::parse("switched").unwrap();
        assert_eq!(monitor.set_enabled(&query, enabled).unwrap(), 1);
    };
    switch(false);
    eventually(|| !sampler.is_enabled());
    assert!(!sampler.sample() && !sampler.job_end());
    drop(sampler.job());
    assert_eq!((sampler.written(), sampler.failed()), (0, 0));
    switch(true);
    eventually(|| sampler.is_enabled());
    assert!(sampler.sample());
    assert!(!sampler.job_end(), "the begin of this job was not seen");
    assert!(sampler.job_end(), "but that of the next one");
    assert_eq!(sampler.written(), 2);
}

/// The child of a fork, which counts its own faults after it has registered.
fn forked_child_counts_itself_after_registration() {
    let mut sampler = request("forked", &["minor-faults"]);
    let mut sampler = DynamicSampler::register(std::mem::take(&mut sampler)).unwrap();
    // SAFETY: the child calls functions that allocate, which glibc permits after a fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = sampler.sample() == Err(SamplerThreadError);
        let connected = matches!(sampler.register_again(), Ok(true));
        let works = sampler.sample() == Ok(true) && sampler.end_job() == Ok(true);
        let code = i32::from(!refused) | i32::from(!connected) << 1 | i32::from(!works) << 2;
        // SAFETY: ends the child without running anything more of it.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the exit status of the child");
    assert_eq!(sampler.sample(), Ok(true), "the parent's goes on");
    assert_eq!(sampler.written(), 1);
}

fn request(id: &str, counters: &[&str]) -> SamplerRequest {
    SamplerRequest {
        sampler: id.to_owned(),
        counters: counters.iter().map(|name| (*name).to_owned()).collect(),
        ..SamplerRequest::default()
    }
}

#[test]
fn other_threads_are_refused() {
    let Ok(mut sampler) = DynamicSampler::register(request("mine", &["task-clock"])) else {
        println!("skipped: this user may not count");
        return;
    };
    assert_eq!(sampler.sample(), Ok(true));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(sampler.sample(), Err(SamplerThreadError));
            assert_eq!(sampler.begin_job(), Err(SamplerThreadError));
            assert_eq!(sampler.end_job(), Err(SamplerThreadError));
        });
    });
    assert_eq!(sampler.written(), 1);
}

#[test]
fn counters_that_cannot_be_used_are_explained_or_left_out() {
    let error = Sampler::builder("x")
        .counters(["cycels"])
        .register()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no counter `cycels`; similar names: cycles"
    );
    let error = DynamicSampler::register(request("x", &[])).unwrap_err();
    assert!(matches!(
        error,
        RegisterSamplerError::Counter(CounterError::Number(0))
    ));
    // A raw event that no CPU has, and one that all machines have.
    let both = Sampler::builder("x").counters(["rffffffffffffffff", "task-clock"]);
    let error = both.register().unwrap_err();
    assert!(error.to_string().contains("`rffffffffffffffff`"), "{error}");
    match both.skip_missing().register() {
        Ok(mut sampler) => {
            assert_eq!(sampler.missing().len(), 1, "{:?}", sampler.missing());
            assert!(sampler.sample());
        }
        Err(reason) => println!("skipped: {reason}"),
    }
}

#[test]
fn sampler_states_its_memory() {
    let Ok(sampler) = Sampler::builder("memory")
        .counters(["task-clock"])
        .register()
    else {
        println!("skipped: this user may not count");
        return;
    };
    assert!(sampler.bytes() < 4096, "{}", sampler.bytes());
    let page = Pages::new(1);
    // SAFETY: locks the page alone.
    let may_lock = unsafe { libc::mlock(page.0.cast(), Pages::BYTES) } == 0;
    assert!(sampler.is_locked() || !may_lock);
}
