// SPDX-License-Identifier: MIT OR Apache-2.0
//! Servers and interpreters of others under load, with each back end: their own checks find
//! nothing. Those that are not installed are skipped; `make naps` installs them, and loads them for
//! longer.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{chown, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use overhear_naps::ProcessRecord;

mod support;

use support::{Documents, Settings};

const BACKENDS: [&str; 2] = ["move", "accessed"];
/// Length of the load on each server, in seconds.
const SECONDS: &str = "OVERHEAR_NAPS_SECONDS";
/// `nobody`, in whose name a server runs that refuses root.
const NOBODY: u32 = 65_534;

/// Protections as often as possible.
const fn settings(backend: &'static str) -> Settings {
    Settings {
        backend,
        threshold_ms: 20,
        budget: "0.5",
    }
}

fn load_time() -> Duration {
    let seconds = std::env::var(SECONDS).ok().and_then(|it| it.parse().ok());
    Duration::from_secs(seconds.unwrap_or(2))
}

/// A program in PATH, or in the folders where Debian has servers.
fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.push("/usr/sbin".into());
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    folders.extend(versions.flatten().map(|version| version.path().join("bin")));
    let found = folders.iter().map(|folder| folder.join(name));
    let found = found.clone().find(|file| file.is_file());
    if found.is_none() {
        println!("skipped: {name} is not installed");
    }
    found
}

/// A server that ends with its test.
struct Server(Child);

impl Server {
    /// Waits until the server has printed a word.
    fn start(command: &mut Command, word: &str) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = Self(command.spawn().unwrap());
        let (out, err) = (server.0.stdout.take(), server.0.stderr.take());
        let (sender, lines) = std::sync::mpsc::channel();
        let forward = |from: Box<dyn std::io::Read + Send>| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(from).lines().map_while(Result::ok) {
                    // The test waits for one line only; the others keep the server from blocking.
                    let _ = sender.send(line);
                }
            });
        };
        forward(Box::new(out.unwrap()));
        forward(Box::new(err.unwrap()));
        drop(sender);
        let mut seen = Vec::new();
        for line in lines {
            if line.contains(word) {
                return server;
            }
            seen.push(line);
        }
        panic!("the server is not ready: {seen:#?}");
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child is not reaped yet, so the number is its own.
        unsafe { libc::kill(self.0.id() as i32, signal) };
    }

    fn ends_well(mut self) {
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|status| status.is_none()) {
            self.signal(libc::SIGKILL);
            let _ = self.0.wait();
        }
    }
}

/// The output of a command that succeeds.
fn text(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    text
}

/// Something was protected, so that the test shows something.
fn check_protections(name: &str, settings: Settings, records: &[ProcessRecord]) {
    assert!(!records.is_empty(), "{name}: no document");
    if !records.iter().any(|it| it.backend == settings.backend) {
        println!("skipped: {}", records[0].backend_reason);
        return;
    }
    let sum = |of: fn(&ProcessRecord) -> u64| records.iter().map(of).sum::<u64>();
    let protections = sum(|it| it.watched.protections);
    let accesses = sum(|it| it.watched.accesses);
    let processes = records.len();
    let backend = settings.backend;
    println!(
        "{name} {backend}: {processes} processes, {protections} protections, {accesses} accesses"
    );
    assert!(protections > 0, "{name}: {records:#?}");
}

#[test]
fn redis_keeps_its_data() {
    let (Some(program), Some(load)) = (installed("redis-server"), installed("redis-benchmark"))
    else {
        return;
    };
    for backend in BACKENDS {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let server = || {
            let mut server = Command::new(&program);
            server
                .args(["--port", "0", "--save", "", "--appendonly", "yes"])
                .args(["--enable-debug-command", "yes", "--unixsocket"])
                .arg(&socket)
                .arg("--dir")
                .arg(folder.path());
            server
        };
        let client = |words: &[&str]| {
            let mut client = Command::new("redis-cli");
            text(client.arg("-s").arg(&socket).args(words))
        };
        let documents = Documents::create();
        let mut observed = server();
        documents.preload(&mut observed, settings(backend));
        let running = Server::start(&mut observed, "ready to accept");
        let fill = "for i = 1, 300 do redis.call('set', 'own' .. i, string.rep(i, 9000)) end";
        client(&["eval", fill, "0"]);
        let start = Instant::now();
        let mut rounds = 0;
        while rounds == 0 || start.elapsed() < load_time() {
            rounds += 1;
            for (requests, bytes) in [("500", "30000"), ("10000", "100")] {
                let mut load = Command::new(&load);
                load.args(["-q", "-P", "4", "-r", "500", "-n", requests, "-d", bytes]);
                load.args(["-t", "set,get,hset,lpush,lpop,sadd,zadd", "-s"]);
                text(load.arg(&socket));
            }
            // Children write the data while the parent changes it.
            client(&["bgsave", "schedule"]);
            client(&["bgrewriteaof"]);
            let check = "for i = 1, 300 do \
                if redis.call('get', 'own' .. i) ~= string.rep(i, 9000) then return i end \
                end return 'equal'";
            assert_eq!(client(&["eval", check, "0"]).trim(), "equal");
            client(&["del", "mylist"]);
        }
        let digest = client(&["debug", "digest"]);
        client(&["debug", "reload"]);
        assert_eq!(client(&["debug", "digest"]), digest);
        // Waits for the children.
        let mut shutdown = Command::new("redis-cli");
        shutdown.arg("-s").arg(&socket).args(["shutdown", "save"]);
        let _ = shutdown.output().unwrap();
        running.ends_well();
        text(Command::new("redis-check-rdb").arg(folder.path().join("dump.rdb")));
        // Without the library the data is the same.
        let plain = Server::start(&mut server(), "ready to accept");
        assert_eq!(client(&["debug", "digest"]), digest);
        drop(plain);
        check_protections("redis", settings(backend), &documents.records());
    }
}

#[test]
fn sqlite_finds_its_database_intact() {
    let Some(program) = installed("sqlite3") else {
        return;
    };
    for backend in BACKENDS {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("base");
        let run = |script: &str, documents: Option<&Documents>| {
            let mut command = Command::new(&program);
            if let Some(documents) = documents {
                documents.preload(&mut command, settings(backend));
            }
            text(command.arg("-bail").arg(&base).arg(script))
        };
        run(
            "pragma journal_mode=wal; create table t(a integer primary key, b text, c blob);
            create index i on t(b);",
            None,
        );
        let documents = Documents::create();
        let start = Instant::now();
        let mut rounds = 0;
        while rounds == 0 || start.elapsed() < load_time() {
            rounds += 1;
            // Several processes write to one database.
            std::thread::scope(|scope| {
                for writer in 0..3 {
                    let (run, documents) = (&run, &documents);
                    let script = format!(
                        "pragma busy_timeout=60000; pragma cache_size=-8000;
                        pragma mmap_size=4000000; begin immediate;
                        with recursive n(x) as (select 1 union all select x + 1 from n
                            where x < 20000)
                        insert into t(b, c) select x || '-{writer}-' || {rounds},
                            case x % 200 when 0 then zeroblob(60000) end from n;
                        delete from t where a % 7 = {writer}; commit;
                        select count(*) from (select b, length(c) from t order by c, b desc);"
                    );
                    scope.spawn(move || run(&script, Some(documents)));
                }
            });
            assert_eq!(run("pragma integrity_check", Some(&documents)).trim(), "ok");
        }
        assert_eq!(run("pragma integrity_check", None).trim(), "ok");
        check_protections("sqlite", settings(backend), &documents.records());
    }
}

#[test]
fn python_passes_its_own_tests() {
    let Some(program) = installed("python3") else {
        return;
    };
    let mut tests = vec![
        "test_list",
        "test_bytes",
        "test_mmap",
        "test_fork1",
        "test_zlib",
    ];
    if std::env::var_os(SECONDS).is_some() {
        tests.extend([
            "test_dict",
            "test_gc",
            "test_io",
            "test_json",
            "test_memoryview",
            "test_multiprocessing_fork",
            "test_posix",
            "test_signal",
            "test_subprocess",
            "test_thread",
            "test_threading",
        ]);
    }
    let folder = tempfile::tempdir().unwrap();
    let run = || {
        let mut command = Command::new(&program);
        command.args(["-m", "test", "-q"]).args(&tests);
        command.current_dir(folder.path());
        command
    };
    let plain = run().output().unwrap();
    if !plain.status.success() {
        println!("skipped: this Python lacks its tests, or fails them without the library");
        return;
    }
    for backend in BACKENDS {
        let documents = Documents::create();
        let mut command = run();
        documents.preload(&mut command, settings(backend));
        text(&mut command);
        check_protections("python", settings(backend), &documents.records());
    }
}

/// A request to nginx: the body of the answer.
fn fetch(socket: &Path, name: &str) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "GET /{name} HTTP/1.0\r\nHost: test\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no header: {}", answer.escape_ascii()));
    assert!(
        answer.starts_with(b"HTTP/1.1 200"),
        "{}",
        answer[..end].escape_ascii()
    );
    answer.split_off(end + 4)
}

#[test]
fn nginx_serves_what_is_in_its_files() {
    let Some(program) = installed("nginx") else {
        return;
    };
    for backend in BACKENDS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        // Its workers leave root.
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        let files: Vec<Vec<u8>> = [100, 5_000, 200_000, 3_000_000]
            .into_iter()
            .map(|size| {
                (0..size)
                    .map(|at: u32| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8)
                    .collect()
            })
            .collect();
        for (number, bytes) in files.iter().enumerate() {
            fs::write(folder.path().join(number.to_string()), bytes).unwrap();
        }
        let server = folder.path().join("server");
        let configuration = format!(
            "daemon off; master_process on; worker_processes 2; error_log stderr notice;
            pid {path}/pid;
            events {{ worker_connections 256; }}
            http {{
                access_log off; sendfile off; output_buffers 4 128k; default_type text/plain;
                client_body_temp_path {path}/t1; proxy_temp_path {path}/t2;
                fastcgi_temp_path {path}/t3; uwsgi_temp_path {path}/t4; scgi_temp_path {path}/t5;
                proxy_buffers 8 128k; proxy_buffer_size 128k; proxy_busy_buffers_size 256k;
                server {{ listen unix:{path}/files; root {path}; }}
                server {{ listen unix:{path}/server; location / {{ proxy_pass http://unix:{path}/files:; }} }}
            }}"
        );
        let file = folder.path().join("configuration");
        fs::write(&file, configuration).unwrap();
        let mut command = Command::new(&program);
        command.arg("-p").arg(folder.path()).arg("-c").arg(&file);
        let documents = Documents::create();
        documents.preload(&mut command, settings(backend));
        let running = Server::start(&mut command, "start worker process ");
        let end = Instant::now() + load_time();
        std::thread::scope(|scope| {
            for client in 0..4 {
                let (server, files) = (&server, &files);
                scope.spawn(move || {
                    let mut request = client;
                    while Instant::now() < end || request < 40 {
                        let number = request % files.len();
                        assert!(fetch(server, &number.to_string()) == files[number]);
                        request += 1;
                    }
                });
            }
        });
        // New workers with a new configuration, while the old ones end.
        running.signal(libc::SIGHUP);
        assert!(fetch(&server, "2") == files[2]);
        running.signal(libc::SIGQUIT);
        running.ends_well();
        check_protections("nginx", settings(backend), &documents.records());
    }
}

#[test]
fn postgres_keeps_its_sums_and_indexes() {
    let (Some(server), Some(initdb), Some(pgbench)) = (
        installed("postgres"),
        installed("initdb"),
        installed("pgbench"),
    ) else {
        return;
    };
    // SAFETY: the call has no arguments.
    let is_root = unsafe { libc::geteuid() } == 0;
    for backend in BACKENDS {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("base");
        if is_root {
            chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let command = |program: &Path| {
            let mut command = Command::new(program);
            command
                .current_dir(folder.path())
                .env("HOME", folder.path());
            if is_root {
                command.uid(NOBODY).gid(NOBODY);
            }
            command
        };
        let client = |program: &Path, words: &[&str]| {
            let mut client = command(program);
            client.env("PGHOST", folder.path()).env("PGUSER", "admin");
            text(client.env("PGDATABASE", "postgres").args(words))
        };
        let psql = installed("psql").unwrap();
        let query = |words: &str| client(&psql, &["-XAtqc", words]).trim().to_owned();
        let mut initial = command(&initdb);
        initial.args(["-A", "trust", "-U", "admin", "-k", "-N", "-D"]);
        text(initial.arg(&base));
        let documents = Documents::create();
        let mut observed = match (is_root, installed("setpriv")) {
            // The back end `move` needs this privilege, without which nobody may use userfaultfd.
            (true, Some(setpriv)) => {
                let mut observed = Command::new(setpriv);
                observed.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
                observed.args(["--inh-caps=+sys_ptrace", "--ambient-caps=+sys_ptrace"]);
                observed.current_dir(folder.path()).arg(&server);
                observed
            }
            _ => command(&server),
        };
        observed.arg("-D").arg(&base).arg("-k").arg(folder.path());
        observed.args(["-c", "listen_addresses=", "-c", "fsync=off"]);
        observed.args(["-c", "work_mem=16MB", "-c", "autovacuum_naptime=1"]);
        documents.preload(&mut observed, settings(backend));
        let running = Server::start(&mut observed, "ready to accept connections");
        client(&pgbench, &["-i", "-q", "-s", "3"]);
        let seconds = load_time().as_secs().to_string();
        std::thread::scope(|scope| {
            scope.spawn(|| client(&pgbench, &["-c", "4", "-j", "2", "-T", &seconds]));
            scope.spawn(|| {
                for _ in 0..load_time().as_secs() {
                    // Sorts and hash tables of some MiB, and two processes for one query.
                    query(
                        "set max_parallel_workers_per_gather=2; set min_parallel_table_scan_size=0;
                        select count(*) from (select a.bid, string_agg(a.filler, ',' order by a.aid desc)
                        from pgbench_accounts a join pgbench_accounts b using (aid) group by a.bid) x",
                    );
                }
            });
        });
        let sums = query(
            "select (select sum(abalance) from pgbench_accounts)
                = (select coalesce(sum(delta), 0) from pgbench_history),
            (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches),
            (select count(*) from pgbench_history) > 0",
        );
        assert_eq!(sums, "t|t|t");
        query("create extension if not exists amcheck");
        query(
            "select bt_index_check(indexrelid, true) from pg_index join pg_class c on c.oid = indexrelid
            join pg_am a on a.oid = c.relam where amname = 'btree' and c.relpersistence = 'p'",
        );
        running.signal(libc::SIGINT);
        running.ends_well();
        text(
            command(&installed("pg_checksums").unwrap())
                .arg("--check")
                .arg("-D")
                .arg(&base),
        );
        check_protections("postgres", settings(backend), &documents.records());
    }
}
