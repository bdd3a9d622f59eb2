//! How a private cluster is set up before its first start.

#![expect(clippy::expect_used, reason = "a harness: a panic is how it reports")]

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::certs::Certs;
use crate::cluster::Cluster;
use crate::installation::{Installation, give_to_server};
use crate::template;

/// The password of the role `postgres` wherever [`Auth`] asks for one.
pub const PASSWORD: &str = "ferryman";

/// How the server checks who connects over TCP. Its own socket always trusts, so that the harness
/// gets in whatever is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// No password.
    Trust,
    /// The password as it is.
    Cleartext,
    /// The old challenge.
    Md5,
    /// SCRAM-SHA-256, with channel binding when TLS is on.
    Scram,
    /// The client's certificate ([`Certs::client`]) names the role; needs TLS.
    Cert,
}

/// Whether the server speaks TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// It answers that it does not.
    Off,
    /// It does, and takes plain connections too.
    Offered,
    /// Plain connections over TCP match no line of `pg_hba.conf`.
    Required,
}

/// A cluster to be: a builder whose defaults suit a test of logical replication.
///
/// `wal_level=logical`, 20 senders and slots, 10 prepared transactions, UTC, `fsync=off`, small
/// buffers, locale C, encoding UTF-8, role and database `postgres`, trust.
#[derive(Debug, Clone)]
#[must_use]
pub struct ClusterConfig {
    pub(crate) installation: Installation,
    settings: Vec<(String, String)>,
    hba: Vec<String>,
    pub(crate) auth: Auth,
    tls: Tls,
    initdb: Vec<String>,
}

const DEFAULTS: [(&str, &str); 13] = [
    ("wal_level", "logical"),
    ("max_wal_senders", "20"),
    ("max_replication_slots", "20"),
    ("max_prepared_transactions", "10"),
    ("shared_buffers", "64MB"),
    ("fsync", "off"),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
    ("log_line_prefix", "%m [%p] %q%u@%d "),
    ("lc_messages", "C"),
    ("listen_addresses", "127.0.0.1"),
    // Segments in the data directory go with it; the system's own kind would survive SIGKILL.
    ("dynamic_shared_memory_type", "mmap"),
    ("cluster_name", "walferry-private"),
];

impl ClusterConfig {
    /// The defaults, on the programs of `installation`.
    pub fn new(installation: Installation) -> Self {
        Self {
            installation,
            settings: Vec::new(),
            hba: Vec::new(),
            auth: Auth::Trust,
            tls: Tls::Off,
            initdb: Vec::new(),
        }
    }

    /// Sets a parameter of `postgresql.conf`; the last of several values counts.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes through to the disk, as servers in production do: for tests of crashes and for
    /// benchmarks.
    pub fn durable(self) -> Self {
        self.setting("fsync", "on")
    }

    /// Sets how connections over TCP are checked.
    pub fn auth(mut self, auth: Auth) -> Self {
        self.auth = auth;
        self
    }

    /// Sets whether the server speaks TLS, with a new [`Certs`].
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// Puts a line of `pg_hba.conf` before those that [`Auth`] and [`Tls`] make; the first line
    /// that matches counts.
    pub fn hba(mut self, line: &str) -> Self {
        self.hba.push(line.to_owned());
        self
    }

    /// Adds an argument of `initdb`, such as `--wal-segsize=1`; this costs an `initdb` of its own.
    pub fn initdb(mut self, argument: &str) -> Self {
        self.initdb.push(argument.to_owned());
        self
    }

    /// Makes the cluster and starts its server.
    ///
    /// # Panics
    ///
    /// When the server does not start; the message holds the end of its log.
    #[track_caller]
    pub fn start(self) -> Cluster {
        Cluster::new(&self)
    }

    /// Fills `home/data` and returns the certificates, if any.
    pub(crate) fn write_data(&self, home: &Path) -> Option<Certs> {
        let data = home.join("data");
        if self.initdb.is_empty() {
            template::copy_into(&data, &self.installation);
        } else {
            template::initdb(&data, &self.installation, &self.initdb);
        }
        let certs = (self.tls != Tls::Off).then(|| {
            let dir = home.join("certs");
            fs::create_dir(&dir).expect("the home can be written");
            give_to_server(&dir);
            Certs::make(&dir)
        });
        append(&data.join("postgresql.conf"), &self.settings_text(home, certs.as_ref()));
        fs::write(data.join("pg_hba.conf"), self.hba_text()).expect("pg_hba.conf can be written");
        certs
    }

    fn settings_text(&self, home: &Path, certs: Option<&Certs>) -> String {
        let mut text = String::from("\n# Written by walferry-cluster.\n");
        let mut line = |name: &str, value: &str| {
            let value = value.replace('\\', r"\\").replace('\'', "''");
            writeln!(text, "{name} = '{value}'").expect("a string grows");
        };
        for (name, value) in DEFAULTS {
            line(name, value);
        }
        line("unix_socket_directories", &shown(home));
        if self.auth == Auth::Md5 {
            line("password_encryption", "md5");
        }
        if let Some(certs) = certs {
            line("ssl", "on");
            line("ssl_ca_file", &shown(&certs.authority));
            line("ssl_cert_file", &shown(&certs.server));
            line("ssl_key_file", &shown(&certs.server_key));
        }
        for (name, value) in &self.settings {
            line(name, value);
        }
        text
    }

    fn hba_text(&self) -> String {
        let method = match self.auth {
            Auth::Trust => "trust",
            Auth::Cleartext => "password",
            Auth::Md5 => "md5",
            Auth::Scram => "scram-sha-256",
            Auth::Cert => "cert",
        };
        let host = if self.tls == Tls::Required { "hostssl" } else { "host" };
        let host = if self.auth == Auth::Cert { "hostssl" } else { host };
        let mut lines =
            vec!["local all all trust".to_owned(), "local replication all trust".to_owned()];
        lines.extend(self.hba.iter().cloned());
        for database in ["all", "replication"] {
            lines.push(format!("{host} {database} all 127.0.0.1/32 {method}"));
        }
        lines.push(String::new());
        lines.join("\n")
    }
}

fn append(path: &PathBuf, text: &str) {
    let mut file = OpenOptions::new().append(true).open(path).expect("initdb made the file");
    file.write_all(text.as_bytes()).expect("the file can be written");
}

fn shown(path: &Path) -> String {
    path.to_str().expect("temporary directories have names in UTF-8").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_test_come_before_those_of_the_method() {
        let config = ClusterConfig::new(Installation::at(15, "/nowhere"))
            .auth(Auth::Scram)
            .tls(Tls::Required)
            .hba("host all reader 127.0.0.1/32 reject");
        let text = config.hba_text();
        assert_eq!(
            text,
            "local all all trust\n\
             local replication all trust\n\
             host all reader 127.0.0.1/32 reject\n\
             hostssl all all 127.0.0.1/32 scram-sha-256\n\
             hostssl replication all 127.0.0.1/32 scram-sha-256\n"
        );
    }
}
