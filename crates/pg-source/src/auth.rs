//! Signing in: trust, password, md5 and SCRAM with channel binding.
//!
//! Owns what we are ready to show to whom. Must never know what the session is for.

use bytes::Bytes;
use pgwire::messages::startup::{Password, SASLInitialResponse, SASLResponse};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{
    ChannelBinding as Binding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256,
};

use crate::config::{ChannelBinding, SourceConfig};
use crate::error::SourceError;
use crate::message::AuthRequest;
use crate::session::{Session, unexpected};

/// Neither weak nor a denial of service (Z).
const ITERATIONS: std::ops::RangeInclusive<u32> = 4_096..=1_000_000;
const DURING: &str = "signing in";

/// Answers what the server asks until it is content.
pub(crate) async fn sign_in(
    session: &mut Session,
    config: &SourceConfig,
) -> Result<(), SourceError> {
    let mut bound = false;
    loop {
        match request(session, config).await? {
            AuthRequest::Ok => break,
            AuthRequest::Cleartext if session.transport().is_private() => {
                let password = password(config)?.to_owned();
                session.send(&Password::new(password), DURING).await?;
            }
            AuthRequest::Cleartext => {
                let why = "it asks for the password in clear, and the connection has no TLS";
                return Err(refused(config, why));
            }
            AuthRequest::Md5 { salt } => {
                let hash = md5_hash(config.user.as_bytes(), password(config)?.as_bytes(), salt);
                session.send(&Password::new(hash), DURING).await?;
            }
            AuthRequest::Sasl { mechanisms } => bound = scram(session, config, &mechanisms).await?,
            AuthRequest::SaslContinue(_) | AuthRequest::SaslFinal(_) => {
                return Err(SourceError::unexpected(DURING, "SASL data out of turn"));
            }
            AuthRequest::Other(code) => {
                let why =
                    format!("it asks for authentication method {code}, which is not supported");
                return Err(refused(config, &why));
            }
        }
    }
    if config.channel_binding == ChannelBinding::Require && !bound {
        return Err(refused(config, "channel binding is required, and it did not ask for it"));
    }
    Ok(())
}

async fn request(session: &mut Session, config: &SourceConfig) -> Result<AuthRequest, SourceError> {
    let during = format!("signing in as {}", config.describe());
    let message = session.answer(&during).await?;
    match message.tag {
        b'R' => AuthRequest::parse(&message.body)
            .ok_or_else(|| SourceError::unexpected(DURING, "a cut authentication request")),
        // A server that knows no newer minor version says so; 3.0 is what we asked for.
        b'v' => Err(SourceError::unexpected(DURING, "another protocol version")),
        tag => Err(unexpected(DURING, tag)),
    }
}

fn refused(config: &SourceConfig, why: &str) -> SourceError {
    SourceError::SignIn { server: config.server(), reason: why.to_owned() }
}

fn password(config: &SourceConfig) -> Result<&str, SourceError> {
    config.password.as_deref().ok_or_else(|| {
        let note = config.password_note.as_deref();
        let note = note.map(|note| format!("; {note}")).unwrap_or_default();
        refused(
            config,
            &format!("it asks for a password of {}, and none is given{note}", config.user),
        )
    })
}

/// The whole exchange; whether it was bound to the TLS channel.
async fn scram(
    session: &mut Session,
    config: &SourceConfig,
    mechanisms: &[String],
) -> Result<bool, SourceError> {
    let offers = |name: &str| mechanisms.iter().any(|mechanism| mechanism == name);
    let end_point = match config.channel_binding {
        ChannelBinding::Disable => None,
        ChannelBinding::Prefer | ChannelBinding::Require => session.transport().end_point(),
    };
    let (mechanism, binding, bound) = match end_point {
        Some(hash) if offers(SCRAM_SHA_256_PLUS) => {
            (SCRAM_SHA_256_PLUS, Binding::tls_server_end_point(hash), true)
        }
        _ if !offers(SCRAM_SHA_256) => {
            let why = format!("it offers {} and not SCRAM-SHA-256", mechanisms.join(", "));
            return Err(refused(config, &why));
        }
        Some(_) => (SCRAM_SHA_256, Binding::unrequested(), false),
        None => (SCRAM_SHA_256, Binding::unsupported(), false),
    };
    if config.channel_binding == ChannelBinding::Require && !bound {
        return Err(refused(config, "channel binding is required, and it is not possible"));
    }
    let failed = |error: std::io::Error| refused(config, &error.to_string());
    let mut scram = ScramSha256::new(password(config)?.as_bytes(), binding);
    let first = Bytes::copy_from_slice(scram.message());
    session.send(&SASLInitialResponse::new(mechanism.to_owned(), Some(first)), DURING).await?;
    let AuthRequest::SaslContinue(challenge) = request(session, config).await? else {
        return Err(SourceError::unexpected(DURING, "no SASL challenge"));
    };
    check_iterations(&challenge)?;
    scram.update(&challenge).map_err(failed)?;
    let proof = Bytes::copy_from_slice(scram.message());
    session.send(&SASLResponse::new(proof), DURING).await?;
    let AuthRequest::SaslFinal(verdict) = request(session, config).await? else {
        return Err(SourceError::unexpected(DURING, "no SASL verdict"));
    };
    scram.finish(&verdict).map_err(failed)?;
    Ok(bound)
}

/// `r=..,s=..,i=4096`. What cannot be read is left to the one who reads it all.
fn check_iterations(challenge: &[u8]) -> Result<(), SourceError> {
    let fields = challenge.split(|byte| *byte == b',');
    let found = fields.filter_map(|field| field.strip_prefix(b"i=")).next();
    let count = found.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
    match count {
        Some(count) if !ITERATIONS.contains(&count) => Err(SourceError::Limit {
            name: "SCRAM iterations",
            message: format!(
                "the server demands {count} SCRAM iterations, allowed are {}..{}",
                ITERATIONS.start(),
                ITERATIONS.end()
            ),
        }),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Z
    #[test]
    fn iterations_are_bounded() {
        for (count, allowed) in
            [(4_095, false), (4_096, true), (1_000_000, true), (1_000_001, false)]
        {
            let challenge = format!("r=nonce,s=c2FsdA==,i={count}");
            assert_eq!(check_iterations(challenge.as_bytes()).is_ok(), allowed, "{count}");
        }
        assert!(check_iterations(b"nonsense").is_ok());
    }
}
