// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data sources over a copy of the files of a machine, and on this machine.

use std::fs;
use std::path::Path;

use overhear_sampling::sources::{split_names, SourceFinder, SourceNameError};
use overhear_sampling::{CostClass, QuantityKind};

/// The files of a machine.
fn machine() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let files = [
        ("proc/pressure/cpu", "some avg10=0.50 avg60=0.00 avg300=0.00 total=1200\n"),
        ("proc/stat", "cpu  10 0 20 300 0 0 0 0 0 0\ncpu0 5 0 10 150 0 0 0 0 0 0\nctxt 900\nprocs_running 3\n"),
        ("proc/meminfo", "MemTotal:     1000 kB\nHugePages_Total:       4\n"),
        ("proc/vmstat", "nr_free_pages 77\npgfault 5000\n"),
        ("proc/42/cgroup", "1:cpu:/old\n0::/user.slice/app\n"),
        ("sys/fs/cgroup/cgroup.controllers", "cpu io memory\n"),
        ("sys/fs/cgroup/user.slice/app/cpu.stat", "usage_usec 800\nnr_periods 2\n"),
        ("sys/fs/cgroup/user.slice/app/memory.current", "4096\n"),
        ("sys/fs/cgroup/user.slice/app/memory.stat", "anon 2048\npgfault 9\n"),
        ("sys/fs/cgroup/user.slice/app/io.stat", "8:0 rbytes=5 wbytes=1\n8:16 rbytes=7 wbytes=2\n"),
        ("sys/fs/cgroup/user.slice/app/io.pressure", "some avg10=1.25 total=6\nfull avg10=0.00 total=2\n"),
        ("sys/fs/cgroup/other/memory.current", "8192\n"),
        ("sys/class/hwmon/hwmon0/name", "acpi\n"),
        ("sys/class/hwmon/hwmon0/temp1_input", "30000\n"),
        ("sys/class/hwmon/hwmon1/name", "coretemp\n"),
        ("sys/class/hwmon/hwmon1/temp1_input", "45000\n"),
        ("sys/class/hwmon/hwmon1/fan2_input", "1500\n"),
        ("sys/class/thermal/thermal_zone0/type", "x86_pkg_temp\n"),
        ("sys/class/thermal/thermal_zone0/temp", "-2000\n"),
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "2400000\n"),
        ("sys/class/powercap/intel-rapl:0/name", "package-0\n"),
        ("sys/class/powercap/intel-rapl:0/energy_uj", "990\n"),
        ("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "1000\n"),
        ("sys/kernel/debug/sched/debug", "cpu#0, 2400 MHz\n  .curr->pid   : 17\ncpu#1, 2400 MHz\n  .curr->pid   : 0\n"),
    ];
    for (file, text) in files {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }
    folder
}

/// The value of one name, its unit and kind.
fn value(root: &Path, name: &str) -> Result<(i64, String, QuantityKind), SourceNameError> {
    let finder = SourceFinder::below(root).of_process(42);
    let mut reading = finder.find(&[name])?;
    let quantity = reading.quantities()[0].clone();
    let mut values = [0];
    reading.read(&mut values).expect("it was read before");
    Ok((values[0].cast_signed(), quantity.unit, quantity.kind))
}

#[test]
fn every_family_is_read_below_the_root() {
    use QuantityKind::{Count, Level};
    let machine = machine();
    let expected = [
        ("psi:cpu", 1200, "us", Count),
        ("stat:cpu.system", 200_000_000, "ns", Count),
        ("stat:cpu0.idle", 1_500_000_000, "ns", Count),
        ("stat:ctxt", 900, "", Count),
        ("stat:procs_running", 3, "", Level),
        ("meminfo:MemTotal", 1_024_000, "B", Level),
        ("meminfo:HugePages_Total", 4, "", Level),
        ("vmstat:nr_free_pages", 77, "", Level),
        ("vmstat:pgfault", 5000, "", Count),
        ("cgroup:cpu.stat#usage_usec", 800, "us", Count),
        ("cgroup:memory.current", 4096, "B", Level),
        ("cgroup:memory.stat#anon", 2048, "B", Level),
        ("cgroup:memory.stat#pgfault", 9, "", Count),
        ("cgroup:io.stat#rbytes", 12, "B", Count),
        ("cgroup:io.pressure#full", 2, "us", Count),
        ("cgroup:/other/memory.current", 8192, "B", Level),
        ("hwmon:coretemp/temp1", 45_000, "m°C", Level),
        ("hwmon:hwmon0/temp1", 30_000, "m°C", Level),
        ("hwmon:coretemp/fan2", 1500, "rpm", Level),
        ("thermal:x86_pkg_temp", -2000, "m°C", Level),
        ("cpufreq:0", 2_400_000, "kHz", Level),
        ("powercap:package-0", 990, "uJ", Count),
        ("running:0", 17, "", Level),
        ("running:1", 0, "", Level),
        ("file:/proc/stat#ctxt", 900, "", Level),
        ("total:/sys/fs/cgroup/other/memory.current", 8192, "", Count),
    ];
    for (name, number, unit, kind) in expected {
        let found = value(machine.path(), name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(found, (number, unit.to_owned(), kind), "{name}");
    }
    let (bits, unit, kind) = value(machine.path(), "psi:cpu.avg10").expect("it has averages");
    assert_eq!(
        (f64::from_bits(bits.cast_unsigned()), unit.as_str()),
        (0.5, "%")
    );
    assert_eq!(kind, QuantityKind::RealLevel);
}

#[test]
fn files_are_read_anew_and_shared() {
    let machine = machine();
    let names = ["stat:ctxt", "powercap:package-0", "stat:procs_running"];
    let mut reading = SourceFinder::below(machine.path())
        .find(&names)
        .expect("all are there");
    let names: Vec<&str> = reading
        .quantities()
        .iter()
        .map(|it| it.name.as_str())
        .collect();
    assert_eq!(
        names,
        ["stat_ctxt", "powercap_package_0", "stat_procs_running"]
    );
    assert_eq!(reading.cost(), CostClass::File);
    let write = |file: &str, text| fs::write(machine.path().join(file), text).expect("written");
    write("proc/stat", "ctxt 950\nprocs_running 1\n");
    // The energy has passed its greatest number, 1000.
    write("sys/class/powercap/intel-rapl:0/energy_uj", "15\n");
    let mut values = [0; 3];
    reading.read(&mut values).expect("readable");
    assert_eq!(values, [950, 1015, 1]);
    write("proc/stat", "ctxt 950\n");
    let error = reading
        .read(&mut values)
        .expect_err("a number is gone")
        .to_string();
    assert!(
        error.ends_with("it has no number for `stat_procs_running`"),
        "{error}"
    );
}

#[test]
fn wrong_names_are_sentences() {
    let machine = machine();
    let error = |name: &str| {
        let error = value(machine.path(), name).expect_err("it is wrong");
        (error.is_of_machine(), error.to_string())
    };
    let unknown = [
        ("cpu-tim", "near it are `cpu-time`"),
        ("page-fault", "`page-faults`"),
        ("psi:cpux", "`psi:cpu.some`"),
        ("stat:cpu0.idel", "`stat:cpu0.idle`"),
        ("meminfo:memtotal", "`meminfo:MemTotal`"),
        ("thing", "`overhear list --data-sources` has all names"),
        ("cpufreq:fast", "is no quantity"),
        ("größe:é", "the counter `größe:é` is invalid"),
    ];
    for (name, part) in unknown {
        let (is_of_machine, message) = error(name);
        assert!(!is_of_machine, "{name}: {message}");
        assert!(message.contains(part), "{message}");
    }
    let missing = [
        ("hwmon:nvme/temp1", "it has no chip `nvme`"),
        ("thermal:gpu", "it has no zone `gpu`"),
        ("cpufreq:7", "cannot be read"),
        ("running:9", "it has no CPU 9"),
        ("psi:memory", "cannot be read"),
        ("cgroup:pids.current", "the group may lack the controller"),
        (
            "cgroup:cpu.stat",
            "name a key of it, `cgroup:cpu.stat#KEY`: `usage_usec`, `nr_periods`",
        ),
        (
            "file:/proc/stat#ctx",
            "its lines begin with `cpu`, `cpu0`, `ctxt`",
        ),
        ("file:stat", "does not begin with `/`"),
    ];
    for (name, part) in missing {
        let (is_of_machine, message) = error(name);
        assert!(is_of_machine, "{name}: {message}");
        assert!(message.contains(part), "{message}");
    }
    let nobody = SourceFinder::below(machine.path()).find(&["cpu-time"]);
    let message = nobody.expect_err("no process").to_string();
    assert_eq!(
        message,
        "`cpu-time` is a quantity of a process; name the process to sample"
    );
}

#[test]
fn available_sources_can_be_sampled() {
    let machine = machine();
    let finder = SourceFinder::below(machine.path()).of_process(42);
    let all = finder.available();
    let of_files = all.iter().filter(|source| source.name.contains(':'));
    let mut count = 0;
    for source in of_files {
        let found = finder.find(&[&source.name]);
        assert!(found.is_ok(), "{}: {:?}", source.name, found.err());
        count += 1;
    }
    assert!(count >= 30, "{count} of {all:?}");
}

#[test]
fn this_machine_has_what_it_lists() {
    let finder = SourceFinder::default().of_process(std::process::id());
    let names: Vec<String> = finder
        .available()
        .into_iter()
        .map(|source| source.name)
        .collect();
    assert!(names.len() > 50, "{names:?}");
    let mut failed = Vec::new();
    for name in &names {
        if let Err(error) = finder.find(&[name]) {
            // A sensor of the board may have no value at present, and a group no controller.
            failed.push((name, error.is_of_machine(), error.to_string()));
        }
    }
    assert!(
        failed.iter().all(|(_, is_of_machine, _)| *is_of_machine),
        "{failed:?}"
    );
    assert!(failed.len() * 4 < names.len(), "{failed:?}");
}

#[test]
fn lists_are_split_at_commas() {
    let split = |list| split_names(list).collect::<Vec<_>>();
    assert_eq!(
        split("hwmon:a/temp1, cpu/event=1,umask=2/u,,file:/a/b/c,cycles:u"),
        [
            "hwmon:a/temp1",
            "cpu/event=1,umask=2/u",
            "file:/a/b/c",
            "cycles:u"
        ]
    );
    assert_eq!(split(""), [""; 0]);
}
