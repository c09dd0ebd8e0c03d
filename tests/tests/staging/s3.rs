//! `s3:` locations, with moto's server as the store.

use std::{fs, os::unix::fs::PermissionsExt};

use copal_tests::{
    LIMIT,
    exchange::ask,
    gate::Gate,
    laptop::Laptop,
    process::{Running, free_port},
    python, store,
    tls::Authority,
    wait::wait_blocking,
};

use crate::depot::{Depot, tree};

/// A store with the bucket `lab`, and a Site whose locations `lab` and `nowhere` are in it, by way of a gate.
struct Store {
    _server: Running,
    gate: Gate,
    port: u16,
    depot: Depot,
}

impl Store {
    fn new() -> Self {
        let port = free_port();
        let gate = Gate::before(port);
        let endpoint = format!("{{endpoint: 'http://127.0.0.1:{}'}}", gate.port());
        let settings = [
            "credentials_file: secrets.yml",
            &format!("s3: {{lab: {endpoint}, nowhere: {endpoint}, locked: {endpoint}}}"),
        ];
        let locations =
            [("lab", "s3://lab/campaigns"), ("nowhere", "s3://no-such-bucket"), ("locked", "s3://lab/campaigns")];
        let depot = Depot::new(&[], &[]);
        write_secrets(&depot.laptop);
        depot.configure(&locations, &settings);
        depot.laptop.site(&["site", "sync"]);
        let server = store::start(&depot.laptop.programs, port);
        Self { _server: server, gate, port, depot }
    }

    /// A plain PUT at the store, past Copal.
    fn put(&self, key: &str, headers: &[&str], body: &[u8]) {
        let length = body.len();
        let headers: String = headers.iter().flat_map(|header| [*header, "\r\n"]).collect();
        let head = format!(
            "PUT /lab/{key} HTTP/1.0\r\nHost: 127.0.0.1:{}\r\nContent-Length: {length}\r\n{headers}\r\n",
            self.port
        );
        let answer = ask(self.port, &head, body).unwrap();
        assert!(
            answer.starts_with(b"HTTP/1.1 200") || answer.starts_with(b"HTTP/1.0 200"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }

    /// The answer to a plain GET at the store.
    fn get(&self, key: &str) -> Vec<u8> {
        ask(
            self.port,
            &format!("GET /lab/{key} HTTP/1.0\r\nHost: 127.0.0.1:{}\r\nAuthorization: of its owner\r\n\r\n", self.port),
            b"",
        )
        .unwrap()
    }
}

fn write_secrets(laptop: &Laptop) {
    let path = laptop.site_path().join("secrets.yml");
    let keys = "{access_key_id: AKIDEXAMPLE, secret_access_key: wJalrXUtnFEMI}";
    fs::write(&path, format!("lab: {keys}\nnowhere: {keys}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Something in which each place differs from any other.
fn content(megabytes: usize) -> String {
    (0..megabytes << 17).map(|line| format!("{line:07}\n")).collect()
}

#[test]
fn files_and_folders_go_to_a_bucket_and_come_back() {
    let store = Store::new();
    let depot = &store.depot;
    let out = depot.job("out", &["result=lab:/1/result.txt", "all=lab:/1/all"]);
    depot.laptop.wait_state(out, "PREPROCESSED");
    let files = [
        ("result.txt", content(20)),
        ("sub/größe 1.txt", "grün\n".into()),
        ("sub/a b#c?d%41+e&f.txt", "odd\n".into()),
        ("sub/deep/er/x", "x".into()),
        ("empty", String::new()),
    ];
    for (name, text) in &files {
        let path = depot.workdir("out").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    depot.set_state(out, "RUN_DONE");
    depot.laptop.wait_state(out, "JOB_FINISHED");
    let there = store.get("campaigns/1/all/sub/deep/er/x");
    let head = String::from_utf8_lossy(&there).to_lowercase();
    assert!(
        head.contains("x-amz-meta-copal-sha256: 2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"),
        "{head}"
    );
    assert!(there.ends_with(b"\r\n\r\nx"));
    // More than one part, and the whole file.
    assert_eq!(store.gate.count("PUT /lab/campaigns/1/result.txt?partNumber=3").0, 1);
    assert!(store.get("campaigns/1/result.txt").ends_with(content(20).as_bytes()));

    let back = depot.job("back", &["input=lab:/1/result.txt", "tree=lab:/1/all"]);
    depot.laptop.wait_state(back, "PREPROCESSED");
    assert_eq!(depot.read_work("back/input.dat"), files[0].1);
    let mut expected: Vec<(String, String)> = files.iter().map(|(name, text)| ((*name).into(), text.clone())).collect();
    expected.sort();
    assert_eq!(tree(&depot.workdir("back/tree")), expected);
    // Secrets stay in their file.
    let log = depot.laptop.logs();
    assert!(!log.contains("wJalrXUtnFEMI") && !log.contains("AKIDEXAMPLE"), "{log}");
}

#[test]
fn uploads_and_downloads_go_on_where_they_were() {
    let store = Store::new();
    let depot = &store.depot;
    let out = depot.job("out", &["result=lab:/big"]);
    depot.laptop.wait_state(out, "PREPROCESSED");
    fs::create_dir_all(depot.workdir("out")).unwrap();
    fs::write(depot.workdir("out/result.txt"), content(41)).unwrap();
    // The last of its parts is refused for longer than one try lasts.
    store.gate.refuse("PUT /lab/campaigns/big?partNumber=6", 503, 6);
    depot.set_state(out, "RUN_DONE");
    depot.laptop.wait_state(out, "JOB_FINISHED");
    assert_eq!(store.gate.count("partNumber=6"), (1, 6));
    for part in 1..=5 {
        assert_eq!(store.gate.count(&format!("partNumber={part}&")).0, 1, "part {part} was sent again");
    }
    assert_eq!(store.gate.count("big?uploads").0, 1);
    assert!(store.get("campaigns/big").ends_with(content(41).as_bytes()));

    // A part of the folder is there when the rest is refused; it is not fetched again.
    for name in ["a", "b", "c"] {
        store.put(&format!("campaigns/tree/{name}"), &[], name.as_bytes());
    }
    store.gate.refuse("GET /lab/campaigns/tree/c", 503, 6);
    let back = depot.job("back", &["tree=lab:/tree"]);
    depot.laptop.wait_state(back, "PREPROCESSED");
    assert_eq!(tree(&depot.workdir("back/tree")).len(), 3);
    for name in ["a", "b", "c"] {
        assert_eq!(store.gate.count(&format!("GET /lab/campaigns/tree/{name}")).0, 1, "{name} was fetched again");
    }
}

#[test]
fn what_can_not_be_had_is_told_with_its_cause() {
    let store = Store::new();
    let depot = &store.depot;
    store.put("campaigns/wrong", &["x-amz-meta-copal-sha256: 00"], b"content");
    store.put("campaigns/right", &[], b"content");
    let jobs = [
        ("input=lab:/none", "missing source: there is no s3://lab/campaigns/none"),
        ("tree=nowhere:/x", "there is no bucket no-such-bucket; make it"),
        ("tree=lab:/none", "missing source: there is nothing below s3://lab/campaigns/none"),
        ("input=nowhere:/x", "there is no s3://no-such-bucket/x"),
        ("input=locked:/x", "settings: the location \"locked\": no credentials; put access_key_id"),
        ("input=lab:/wrong", "checksum: s3://lab/campaigns/wrong: what arrived has another SHA-256"),
    ];
    let ids: Vec<i64> =
        (0..).zip(jobs).map(|(number, (slot, _))| depot.job(&format!("bad/{number}"), &[slot])).collect();
    let good = depot.job("good", &["input=lab:/right"]);
    depot.laptop.wait_state(good, "PREPROCESSED");
    for (id, (slot, words)) in ids.iter().zip(jobs) {
        let reason = depot.failure(*id);
        assert!(reason.contains(words), "{slot}: {reason}");
    }
    // Half a folder is no folder, and nothing half is seen under its name.
    assert!(!depot.workdir("bad/5/input.dat").exists());
    // A store that refuses the keys.
    store.gate.refuse("/lab/campaigns/right", 403, 100);
    let refused = depot.job("refused", &["input=lab:/right"]);
    let reason = depot.failure(refused);
    assert!(reason.contains("permission: ") && reason.contains("transfers.credentials_file"), "{reason}");
}

#[test]
fn stores_by_https_go_by_the_authorities_of_the_settings() {
    let depot = Depot::new(&[], &[]);
    write_secrets(&depot.laptop);
    let authority = Authority::new(depot.laptop.programs.home());
    let (port, path) = (free_port(), |file: &std::path::Path| file.to_str().unwrap().to_owned());
    let files = ["-c", &path(&authority.server), "-k", &path(&authority.key)];
    let server = depot.laptop.programs.start(
        python::environment("moto").join("moto_server").to_str().unwrap(),
        &[&["-H", "127.0.0.1", "-p", &port.to_string()], &files[..]].concat(),
    );
    let root = reqwest::Certificate::from_pem(&fs::read(&authority.certificate).unwrap()).unwrap();
    let client = reqwest::Client::builder().tls_certs_only([root]).no_proxy().build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let make = || client.put(format!("https://127.0.0.1:{port}/lab")).header("Content-Length", 0).send();
    wait_blocking("the store to make a bucket", LIMIT * 2, || match runtime.block_on(make()) {
        Ok(answer) if answer.status().is_success() => Ok(()),
        outcome => Err(format!("{outcome:?} {}", server.log())),
    });
    let store = format!("s3: {{lab: {{endpoint: 'https://127.0.0.1:{port}'}}}}");
    let settings = ["credentials_file: secrets.yml", &store];
    depot.configure(&[("lab", "s3://lab/x")], &settings);
    depot.laptop.site(&["site", "sync"]);
    let unknown = depot.job("unknown", &["input=lab:/1"]);
    let reason = depot.failure(unknown);
    assert!(reason.contains("certificate") && reason.contains("transfers.ca_file"), "{reason}");
    let authority = format!("ca_file: {}", path(&authority.certificate));
    depot.configure(&[("lab", "s3://lab/x")], &[settings[0], settings[1], &authority]);
    let job = depot.job("known", &["result=lab:/1"]);
    depot.laptop.wait_state(job, "PREPROCESSED");
    fs::create_dir_all(depot.workdir("known")).unwrap();
    fs::write(depot.workdir("known/result.txt"), "one\n").unwrap();
    depot.set_state(job, "RUN_DONE");
    depot.laptop.wait_state(job, "JOB_FINISHED");
    depot.set_state(unknown, "READY");
    depot.laptop.wait_state(unknown, "PREPROCESSED");
    assert_eq!(depot.read_work("unknown/input.dat"), "one\n");
}
