//! TLS to the source, with libpq's meaning of each mode.
//!
//! Owns verification and the channel binding of a certificate. Must never know the protocol above.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use sha2::{Digest, Sha256, Sha384, Sha512};

use crate::config::{ClientCertificate, Roots, SourceConfig, SslMode};
use crate::error::SourceError;

/// The client's side of TLS for one configuration. Reads the files it names.
pub(crate) fn client(config: &SourceConfig) -> Result<Arc<ClientConfig>, SourceError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match config.ssl_mode {
        SslMode::Disable | SslMode::Prefer | SslMode::Require => {
            Arc::new(Lenient { provider: Arc::clone(&provider), chain: None })
        }
        SslMode::VerifyCa => Arc::new(Lenient {
            provider: Arc::clone(&provider),
            chain: Some(chain_verifier(config, Arc::clone(&provider))?),
        }),
        SslMode::VerifyFull => chain_verifier(config, Arc::clone(&provider))?,
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| setting("sslmode", "TLS 1.2 or newer", &error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let client = match &config.client_certificate {
        None => builder.with_no_client_auth(),
        Some(files) => {
            let (chain, key) = read_client(files)?;
            builder.with_client_auth_cert(chain, key).map_err(|error| {
                setting("sslcert", "a certificate and its key", &error.to_string())
            })?
        }
    };
    Ok(Arc::new(client))
}

fn setting(setting: &'static str, expected: &str, found: &str) -> SourceError {
    SourceError::Setting {
        setting,
        expected: expected.to_owned(),
        found: found.to_owned(),
        message: format!("{setting}: {found}"),
    }
}

fn chain_verifier(
    config: &SourceConfig,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, SourceError> {
    let mut store = RootCertStore::empty();
    match &config.roots {
        Roots::System => {
            let found = rustls_native_certs::load_native_certs();
            let (added, _) = store.add_parsable_certificates(found.certs);
            if added == 0 {
                let why = found.errors.first().map_or("none", |_| "none that could be read");
                return Err(setting("sslrootcert", "authorities of the system", why));
            }
        }
        Roots::File(path) => {
            for certificate in read_certificates("sslrootcert", path)? {
                store.add(certificate).map_err(|error| {
                    let found = format!("{}: {error}", path.display());
                    setting("sslrootcert", "certificates of authorities", &found)
                })?;
            }
        }
    }
    WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider)
        .build()
        .map_err(|error| setting("sslrootcert", "trusted authorities", &error.to_string()))
}

fn read_certificates(
    name: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, SourceError> {
    let refuse = |why: String| {
        setting(name, "a file of PEM certificates", &format!("{}: {why}", path.display()))
    };
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| refuse(error.to_string()))?;
    if certificates.is_empty() {
        Err(refuse("no certificate".to_owned()))
    } else {
        Ok(certificates)
    }
}

fn read_client(
    files: &ClientCertificate,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), SourceError> {
    let chain = read_certificates("sslcert", &files.certificate)?;
    let refuse = |why: String| {
        setting(
            "sslkey",
            "a PEM key that only its owner reads",
            &format!("{}: {why}", files.key.display()),
        )
    };
    let metadata = fs::metadata(&files.key).map_err(|error| refuse(error.to_string()))?;
    let mode = metadata.permissions().mode() & 0o777;
    // As libpq does: a key of root may be read by a group.
    let forbidden = if std::os::unix::fs::MetadataExt::uid(&metadata) == 0 { 0o037 } else { 0o077 };
    if mode & forbidden != 0 {
        return Err(refuse(format!("mode {mode:04o}")));
    }
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| refuse(error.to_string()))?;
    Ok((chain, key))
}

/// Accepts any name, and without `chain` any certificate. Signatures of the handshake are checked
/// all the same, so that channel binding means something.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    chain: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is checked last: everything else was right.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// `tls-server-end-point` of RFC 5929: the certificate under the hash of its own signature, SHA-256
/// in place of MD5 and SHA-1. `None` for algorithms without such a hash.
pub(crate) fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    const RSA: &[u8] = &[0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01];
    const ECDSA_SHA1: &[u8] = &[0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x04, 0x01];
    const ECDSA_SHA2: &[u8] = &[0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x04, 0x03];
    let algorithm = signature_algorithm(certificate)?;
    if algorithm == ECDSA_SHA1 {
        return Some(Sha256::digest(certificate).to_vec());
    }
    let (&last, family) = algorithm.split_last()?;
    match (family, last) {
        (family, 4 | 5 | 11) if family == RSA => Some(Sha256::digest(certificate).to_vec()),
        (family, 12) if family == RSA => Some(Sha384::digest(certificate).to_vec()),
        (family, 13) if family == RSA => Some(Sha512::digest(certificate).to_vec()),
        (family, 2) if family == ECDSA_SHA2 => Some(Sha256::digest(certificate).to_vec()),
        (family, 3) if family == ECDSA_SHA2 => Some(Sha384::digest(certificate).to_vec()),
        (family, 4) if family == ECDSA_SHA2 => Some(Sha512::digest(certificate).to_vec()),
        _ => None,
    }
}

/// The object identifier in `Certificate ::= SEQUENCE { tbs SEQUENCE, algorithm SEQUENCE { OID ..`.
fn signature_algorithm(certificate: &[u8]) -> Option<&[u8]> {
    const SEQUENCE: u8 = 0x30;
    const OBJECT: u8 = 0x06;
    let (whole, _) = element(certificate, SEQUENCE)?;
    let (_, rest) = element(whole, SEQUENCE)?;
    let (algorithm, _) = element(rest, SEQUENCE)?;
    element(algorithm, OBJECT).map(|(object, _)| object)
}

/// Content of the DER element at the start of `bytes`, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, first], rest) = bytes.split_first_chunk::<2>()?;
    if found != tag {
        return None;
    }
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let count = usize::from(first & 0x7F);
        let (digits, rest) = rest.split_at_checked(count).filter(|_| (1..=4).contains(&count))?;
        (digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)), rest)
    };
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = content.len();
        let mut bytes = vec![tag];
        if length < 0x80 {
            bytes.push(length as u8);
        } else {
            bytes.extend([0x82, (length >> 8) as u8, length as u8]);
        }
        bytes.extend_from_slice(content);
        bytes
    }

    fn certificate(object: &[u8]) -> Vec<u8> {
        let algorithm = der(0x30, &[der(6, object), vec![5, 0]].concat());
        der(0x30, &[der(0x30, &[7; 300]), algorithm, der(3, &[0, 1])].concat())
    }

    #[test]
    fn the_hash_of_channel_binding_follows_the_signature() {
        let rsa = |last| vec![0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, last];
        let ecdsa = |last| vec![0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x04, 0x03, last];
        let cases = [
            (rsa(4), Some(32)),
            (rsa(5), Some(32)),
            (rsa(11), Some(32)),
            (rsa(12), Some(48)),
            (rsa(13), Some(64)),
            (rsa(10), None),
            (vec![0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x04, 0x01], Some(32)),
            (ecdsa(2), Some(32)),
            (ecdsa(3), Some(48)),
            (ecdsa(4), Some(64)),
            (vec![0x2B, 0x65, 0x70], None),
        ];
        for (object, length) in cases {
            let binding = end_point(&certificate(&object));
            assert_eq!(binding.map(|hash| hash.len()), length, "{object:?}");
        }
    }

    #[test]
    fn cut_certificates_have_no_binding_and_do_no_harm() {
        let whole = certificate(&[0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x04, 0x03, 2]);
        for end in 0..whole.len() {
            assert_eq!(end_point(&whole[..end]), None);
        }
    }
}
