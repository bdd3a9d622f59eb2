//! Where the source is and how to sign in: libpq's parameters, environment and defaults.
//!
//! Owns the meaning of each parameter and Z-03's default of `sslmode`. Must never open a connection.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use walferry_core::fault::Fault;

use crate::error::SourceError;
use crate::passfile::{self, Login, Lookup};
use crate::url;

/// What libpq calls `sslmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SslMode {
    /// Never TLS.
    Disable,
    /// TLS if the server offers it, without verification.
    Prefer,
    /// TLS; verified only if a root certificate is given.
    Require,
    /// TLS with a certificate of a trusted authority.
    VerifyCa,
    /// As `VerifyCa`, and the certificate names the host.
    VerifyFull,
}

/// Whether SCRAM must be bound to the TLS channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// When TLS is on and the server offers it.
    Prefer,
    /// Always; anything else is refused.
    Require,
}

/// How the server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// Over TCP: the name, which certificates are checked against, and an address that replaces its
    /// resolution.
    Tcp { host: String, address: Option<IpAddr> },
    /// Over a Unix socket in this directory.
    Unix { directory: PathBuf },
}

/// Which authorities are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Roots {
    /// Those of the system.
    System,
    /// Those of a file.
    File(PathBuf),
}

/// A certificate of ours and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientCertificate {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// Everything needed to open a connection. Shows itself without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct SourceConfig {
    pub(crate) address: Address,
    pub(crate) port: u16,
    pub(crate) user: String,
    pub(crate) password: Option<String>,
    /// Why the password file was not used.
    pub(crate) password_note: Option<String>,
    pub(crate) database: String,
    pub(crate) ssl_mode: SslMode,
    pub(crate) roots: Roots,
    pub(crate) client_certificate: Option<ClientCertificate>,
    pub(crate) channel_binding: ChannelBinding,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) options: Option<String>,
}

const DEFAULT_PORT: u16 = 5432;
/// Debian's and Red Hat's place of the server's socket; libpq built from source uses `/tmp`.
const SOCKET_DIRECTORY: &str = "/var/run/postgresql";

/// Environment variables of libpq and the parameters they stand for.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("port", "PGPORT"),
    ("user", "PGUSER"),
    ("password", "PGPASSWORD"),
    ("passfile", "PGPASSFILE"),
    ("dbname", "PGDATABASE"),
    ("sslmode", "PGSSLMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("channel_binding", "PGCHANNELBINDING"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("options", "PGOPTIONS"),
];

/// What the text, then the environment, say about each parameter.
struct Lookups<'a> {
    pairs: Vec<(String, String)>,
    env: &'a dyn Fn(&str) -> Option<String>,
}

impl Lookups<'_> {
    fn get(&self, name: &str) -> Option<String> {
        // The last of several values counts, as in libpq.
        let given = self.pairs.iter().rfind(|(key, _)| key == name).map(|(_, value)| value.clone());
        given.or_else(|| {
            let (_, variable) = ENVIRONMENT.iter().find(|(key, _)| *key == name)?;
            self.env(variable)
        })
    }

    fn env(&self, variable: &str) -> Option<String> {
        (self.env)(variable).filter(|value| !value.is_empty())
    }

    fn home(&self) -> Option<PathBuf> {
        self.env("HOME").map(PathBuf::from)
    }
}

impl SourceConfig {
    /// Reads a URL or `key=value` string; what it leaves out comes from `PG*` variables, the
    /// password file and libpq's defaults. `env` looks up one variable.
    ///
    /// # Errors
    /// A `Configuration` fault that names the parameter and never shows a password.
    pub fn parse(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, Fault> {
        Ok(Self::read(text, env)?)
    }

    fn read(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, SourceError> {
        let lookups = Lookups { pairs: url::parameters(text)?, env };
        let get = |name: &str| lookups.get(name);
        let address = address(get("host"), get("hostaddr"))?;
        let port = match get("port") {
            None => DEFAULT_PORT,
            Some(text) => number("port", &text, "a number in 1..65535")?,
        };
        if port == 0 {
            return Err(refused("port", "0", "a number in 1..65535"));
        }
        let system_user = || lookups.env("USER").or_else(|| lookups.env("LOGNAME"));
        let user = get("user")
            .or_else(system_user)
            .ok_or_else(|| refused("user", "nothing", "a role, by user=.. or PGUSER"))?;
        let database = get("dbname").unwrap_or_else(|| user.clone());
        let roots = match get("sslrootcert") {
            Some(text) if text == "system" => Some(Roots::System),
            Some(path) => Some(Roots::File(PathBuf::from(path))),
            None => lookups
                .home()
                .map(|home| home.join(".postgresql/root.crt"))
                .filter(|path| path.is_file())
                .map(Roots::File),
        };
        let default = if address.is_local() { SslMode::Prefer } else { SslMode::VerifyFull };
        let given = get("sslmode").map(|text| SslMode::parse(&text)).transpose()?;
        let ssl_mode = match (given.unwrap_or(default), &roots) {
            // libpq: a root certificate turns `require` into `verify-ca`.
            (SslMode::Require, Some(Roots::File(_))) => SslMode::VerifyCa,
            (mode, _) => mode,
        };
        let mut config = Self {
            port,
            password: get("password"),
            password_note: None,
            ssl_mode,
            roots: roots.unwrap_or(Roots::System),
            client_certificate: client_certificate(&lookups)?,
            channel_binding: match get("channel_binding") {
                None => ChannelBinding::Prefer,
                Some(text) => ChannelBinding::parse(&text)?,
            },
            connect_timeout: match get("connect_timeout") {
                None => None,
                Some(text) => match number::<i64>("connect_timeout", &text, "seconds")? {
                    ..=0 => None,
                    seconds => Some(Duration::from_secs(seconds.unsigned_abs())),
                },
            },
            options: get("options"),
            address,
            user,
            database,
        };
        config.refuse_what_we_cannot_do(&get)?;
        if config.password.is_none() {
            config.look_for_password(&lookups);
        }
        Ok(config)
    }

    /// Parameters that libpq has and that would change what a connection means.
    fn refuse_what_we_cannot_do(
        &self,
        get: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(), SourceError> {
        let allowed = [
            ("target_session_attrs", &["any", "read-write", "primary"][..]),
            ("gssencmode", &["disable", "prefer"][..]),
        ];
        for (name, values) in allowed {
            if let Some(found) = get(name).filter(|found| !values.contains(&found.as_str())) {
                return Err(refused("source", &format!("{name}={found}"), &values.join(", ")));
            }
        }
        for (name, text) in [("user", &self.user), ("database", &self.database)] {
            if text.contains('\0') || text.len() > 1_000 {
                return Err(refused("source", name, "at most 1,000 bytes without zero bytes"));
            }
        }
        Ok(())
    }

    fn look_for_password(&mut self, lookups: &Lookups<'_>) {
        let path = lookups.get("passfile").map(PathBuf::from);
        let Some(path) = path.or_else(|| Some(lookups.home()?.join(".pgpass"))) else { return };
        let host = match &self.address {
            Address::Tcp { host, .. } => host.clone(),
            Address::Unix { directory } if *directory == default_directory() => {
                "localhost".to_owned()
            }
            Address::Unix { directory } => directory.display().to_string(),
        };
        let login =
            Login { host: &host, port: self.port, database: &self.database, user: &self.user };
        match passfile::look_up(&path, login) {
            Lookup::Found(password) => self.password = Some(password),
            Lookup::Nothing => {}
            Lookup::Ignored(why) => self.password_note = Some(why),
        }
    }

    /// `user@host:port/database`, for people: no password, no options.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{}@{}/{}", self.user, self.server(), self.database)
    }

    /// Name of the database.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database
    }

    /// How TLS is used.
    #[must_use]
    pub const fn ssl_mode(&self) -> SslMode {
        self.ssl_mode
    }

    /// Whether the server is remote and its identity is not verified: to be reported (Z-03).
    #[must_use]
    pub fn is_unverified_remote(&self) -> bool {
        let verified = match self.ssl_mode {
            SslMode::Disable | SslMode::Prefer | SslMode::Require => false,
            SslMode::VerifyCa | SslMode::VerifyFull => true,
        };
        !self.address.is_local() && !verified
    }

    /// `host:port`.
    pub(crate) fn server(&self) -> String {
        match &self.address {
            Address::Tcp { host, .. } if host.contains(':') => format!("[{host}]:{}", self.port),
            Address::Tcp { host, .. } => format!("{host}:{}", self.port),
            Address::Unix { .. } => self.socket_path().display().to_string(),
        }
    }

    pub(crate) fn socket_path(&self) -> PathBuf {
        match &self.address {
            Address::Unix { directory } => directory.join(format!(".s.PGSQL.{}", self.port)),
            Address::Tcp { .. } => PathBuf::new(),
        }
    }
}

impl fmt::Debug for SourceConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceConfig")
            .field("server", &self.describe())
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("ssl_mode", &self.ssl_mode)
            .field("roots", &self.roots)
            .field("client_certificate", &self.client_certificate)
            .field("channel_binding", &self.channel_binding)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

impl Address {
    /// A Unix socket or a loopback address: nobody on the way.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Unix { .. } => true,
            Self::Tcp { address: Some(address), .. } => address.is_loopback(),
            Self::Tcp { host, address: None } => {
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
        }
    }
}

impl SslMode {
    fn parse(text: &str) -> Result<Self, SourceError> {
        match text {
            "disable" => Ok(Self::Disable),
            "prefer" => Ok(Self::Prefer),
            "require" => Ok(Self::Require),
            "verify-ca" => Ok(Self::VerifyCa),
            "verify-full" => Ok(Self::VerifyFull),
            _ => Err(refused("sslmode", text, "disable, prefer, require, verify-ca, verify-full")),
        }
    }
}

impl ChannelBinding {
    fn parse(text: &str) -> Result<Self, SourceError> {
        match text {
            "disable" => Ok(Self::Disable),
            "prefer" => Ok(Self::Prefer),
            "require" => Ok(Self::Require),
            _ => Err(refused("channel_binding", text, "disable, prefer, require")),
        }
    }
}

fn refused(setting: &'static str, found: &str, expected: &str) -> SourceError {
    SourceError::Setting {
        setting,
        expected: expected.to_owned(),
        found: found.to_owned(),
        message: format!("connection parameter {setting} is {found}, expected {expected}"),
    }
}

fn number<T: std::str::FromStr>(
    setting: &'static str,
    text: &str,
    expected: &str,
) -> Result<T, SourceError> {
    text.trim().parse().map_err(|_| refused(setting, text, expected))
}

fn address(host: Option<String>, address: Option<String>) -> Result<Address, SourceError> {
    let several = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains(','));
    if several(&host) || several(&address) {
        return Err(refused("host", "several", "one server: slots belong to one"));
    }
    let ip = match address {
        None => None,
        Some(text) => Some(number("hostaddr", &text, "an IP address")?),
    };
    Ok(match (host, ip) {
        (Some(host), None) if host.starts_with('/') => {
            Address::Unix { directory: PathBuf::from(host) }
        }
        (Some(host), address) => Address::Tcp { host, address },
        (None, Some(address)) => Address::Tcp { host: address.to_string(), address: Some(address) },
        (None, None) => Address::Unix { directory: default_directory() },
    })
}

fn default_directory() -> PathBuf {
    let packaged = Path::new(SOCKET_DIRECTORY);
    if packaged.is_dir() { packaged.to_owned() } else { PathBuf::from("/tmp") }
}

fn client_certificate(lookups: &Lookups<'_>) -> Result<Option<ClientCertificate>, SourceError> {
    let in_home = |name: &str| {
        let path = lookups.home()?.join(".postgresql").join(name);
        path.is_file().then_some(path)
    };
    let path = |name: &str| lookups.get(name).map(PathBuf::from);
    let Some(certificate) = path("sslcert").or_else(|| in_home("postgresql.crt")) else {
        return Ok(None);
    };
    match path("sslkey").or_else(|| in_home("postgresql.key")) {
        Some(key) => Ok(Some(ClientCertificate { certificate, key })),
        None => Err(refused("sslkey", "nothing", "the key of sslcert")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use walferry_core::fault::FaultKind;

    use super::*;

    fn parse_with(text: &str, env: &[(&str, &str)]) -> Result<SourceConfig, Fault> {
        SourceConfig::parse(text, &|name| {
            env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn parse(text: &str) -> SourceConfig {
        parse_with(text, &[("USER", "me")]).unwrap()
    }

    #[test]
    fn what_is_left_out_has_libpqs_defaults() {
        let cases = [
            ("postgres://h", "me@h:5432/me"),
            ("postgres://u@h:1/d", "u@h:1/d"),
            ("postgres://u@[fe80::1]/d", "u@[fe80::1]:5432/d"),
            ("host=/run/pg port=7 user=u", "u@/run/pg/.s.PGSQL.7/u"),
            ("hostaddr=10.0.0.1 user=u", "u@10.0.0.1:5432/u"),
            ("host=db hostaddr=10.0.0.1 user=u", "u@db:5432/u"),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text).describe(), expected, "{text}");
        }
        assert!(matches!(parse("").address, Address::Unix { .. }));
    }

    #[test]
    fn the_text_wins_over_the_environment() {
        let env = [
            ("PGHOST", "eh"),
            ("PGPORT", "9"),
            ("PGUSER", "eu"),
            ("PGPASSWORD", "ep"),
            ("PGDATABASE", "ed"),
            ("PGSSLMODE", "disable"),
            ("PGCONNECT_TIMEOUT", "7"),
            ("PGAPPNAME", "ignored"),
        ];
        let config = parse_with("", &env).unwrap();
        assert_eq!(config.describe(), "eu@eh:9/ed");
        assert_eq!(config.password.as_deref(), Some("ep"));
        assert_eq!(config.ssl_mode, SslMode::Disable);
        assert_eq!(config.connect_timeout, Some(Duration::from_secs(7)));
        let config = parse_with("postgres://u:p@h:1/d?sslmode=require", &env).unwrap();
        assert_eq!(config.describe(), "u@h:1/d");
        assert_eq!(config.password.as_deref(), Some("p"));
        assert_eq!(config.ssl_mode, SslMode::Require);
    }

    // Z-03
    #[test]
    fn remote_hosts_are_verified_unless_told_otherwise() {
        let cases = [
            ("host=db.example", SslMode::VerifyFull, false),
            ("host=10.1.2.3", SslMode::VerifyFull, false),
            ("host=localhost", SslMode::Prefer, false),
            ("host=127.0.0.1", SslMode::Prefer, false),
            ("host=::1", SslMode::Prefer, false),
            ("host=db hostaddr=127.0.0.1", SslMode::Prefer, false),
            ("host=/run/pg", SslMode::Prefer, false),
            ("host=db.example sslmode=require", SslMode::Require, true),
            ("host=db.example sslmode=disable", SslMode::Disable, true),
            ("host=db.example sslmode=verify-ca", SslMode::VerifyCa, false),
            ("host=db.example sslmode=require sslrootcert=/ca", SslMode::VerifyCa, false),
            ("host=db.example sslmode=require sslrootcert=system", SslMode::Require, true),
        ];
        for (text, mode, reported) in cases {
            let config = parse(text);
            assert_eq!(
                (config.ssl_mode, config.is_unverified_remote()),
                (mode, reported),
                "{text}"
            );
        }
    }

    #[test]
    fn values_that_cannot_work_are_refused_by_name() {
        let cases = [
            ("host=h port=0", "port"),
            ("host=h port=65536", "port"),
            ("host=h port=x", "port"),
            ("host=a,b", "host"),
            ("hostaddr=name", "hostaddr"),
            ("host=h sslmode=allow", "sslmode"),
            ("host=h channel_binding=x", "channel_binding"),
            ("host=h connect_timeout=soon", "connect_timeout"),
            ("host=h sslcert=/c", "sslkey"),
            ("host=h target_session_attrs=standby", "source"),
            ("host=h gssencmode=require", "source"),
            ("hots=h", "source"),
        ];
        for (text, name) in cases {
            let fault = parse_with(text, &[("USER", "me")]).unwrap_err();
            let FaultKind::Configuration { setting, .. } = fault.kind else { panic!("{fault}") };
            assert_eq!(setting, name, "{text}");
        }
        assert!(parse_with("host=h", &[]).is_err(), "no user");
    }

    #[test]
    fn a_password_is_never_shown() {
        let config = parse("postgres://u:hunter2@h/d");
        let shown = format!("{config:?} {}", config.describe());
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("***"));
    }

    #[test]
    fn the_password_file_is_the_last_place_to_look() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".pgpass");
        fs::write(&path, "h:5432:d:u:filed\nlocalhost:5432:d:u:local\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let home = dir.path().to_str().unwrap();
        let password = |text: &str| parse_with(text, &[("HOME", home)]).unwrap().password;
        assert_eq!(password("postgres://u@h/d").as_deref(), Some("filed"));
        assert_eq!(password("user=u dbname=d").as_deref(), Some("local"));
        assert_eq!(password("postgres://u:p@h/d").as_deref(), Some("p"));
        assert_eq!(password("postgres://x@h/d"), None);
        let other = format!("user=u host=h dbname=d passfile={}", dir.path().join("no").display());
        assert_eq!(password(&other), None);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let config = parse_with("postgres://u@h/d", &[("HOME", home)]).unwrap();
        assert!(config.password.is_none() && config.password_note.is_some());
    }
}
