//! Certificates for servers that speak TLS: an authority of our own, a server's and a client's.
//!
//! The server's certificate is signed by the authority and is not itself the authority: strict
//! verifiers refuse a server that shows an authority's certificate.

#![expect(clippy::expect_used, reason = "a harness: a panic is how it reports")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::installation::{give_to_server, succeeded};

/// Paths of PEM files, made for one cluster and gone with it.
#[derive(Debug, Clone)]
pub struct Certs {
    /// What a client must trust.
    pub authority: PathBuf,
    /// Valid for `localhost` and 127.0.0.1.
    pub server: PathBuf,
    /// The server's key, owned by the server's user.
    pub server_key: PathBuf,
    /// Names the role `postgres`, for the method `cert`.
    pub client: PathBuf,
    /// The client's key, readable by the test's user alone.
    pub client_key: PathBuf,
}

impl Certs {
    /// Makes all of them in `dir`, which must exist.
    ///
    /// # Panics
    ///
    /// When there is no `openssl`, or it fails.
    pub fn make(dir: &Path) -> Self {
        let certs = Self {
            authority: dir.join("authority.pem"),
            server: dir.join("server.pem"),
            server_key: dir.join("server.key"),
            client: dir.join("client.pem"),
            client_key: dir.join("client.key"),
        };
        let authority_key = dir.join("authority.key");
        let signer = Some((certs.authority.as_path(), authority_key.as_path()));
        let authority = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign"];
        make_one(&certs.authority, &authority_key, "/CN=walferry test authority", &authority, None);
        let leaf = "basicConstraints=critical,CA:FALSE";
        let names = "subjectAltName=DNS:localhost,IP:127.0.0.1";
        let server = [leaf, names, "extendedKeyUsage=serverAuth"];
        make_one(&certs.server, &certs.server_key, "/CN=localhost", &server, signer);
        let client = [leaf, "extendedKeyUsage=clientAuth"];
        make_one(&certs.client, &certs.client_key, "/CN=postgres", &client, signer);
        for file in [&certs.authority, &certs.server, &certs.server_key] {
            give_to_server(file);
        }
        certs
    }
}

fn make_one(
    cert: &Path,
    key: &Path,
    subject: &str,
    extensions: &[&str],
    signer: Option<(&Path, &Path)>,
) {
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    // No configuration of the machine: it could add a second basicConstraints.
    openssl.args(["-config", "/dev/null", "-nodes", "-days", "3650", "-subj", subject]);
    for extension in extensions {
        openssl.args(["-addext", extension]);
    }
    if let Some((authority, authority_key)) = signer {
        openssl.arg("-CA").arg(authority).arg("-CAkey").arg(authority_key);
    }
    openssl.arg("-out").arg(cert).arg("-keyout").arg(key);
    succeeded("openssl req", openssl.output().expect("openssl starts"));
    let readable = fs::metadata(key).expect("openssl wrote a key").permissions();
    debug_assert_eq!(std::os::unix::fs::PermissionsExt::mode(&readable) & 0o077, 0);
}
