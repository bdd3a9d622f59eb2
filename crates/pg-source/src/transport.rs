//! The bytes' way to the server: TCP or a Unix socket, plain or under TLS.
//!
//! Owns connecting and the TLS request. Must never know what is said above it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use pgwire::messages::Message;
use pgwire::messages::startup::SslRequest;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::{Address, SourceConfig, SslMode};
use crate::error::SourceError;
use crate::tls;

/// Silence after which the system asks the peer whether it still lives: a copy connection may be
/// silent for hours by right.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// A connected byte stream.
#[derive(Debug)]
pub(crate) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Transport {
    /// Connects, and starts TLS as the mode of `config` says.
    pub(crate) async fn connect(config: &SourceConfig) -> Result<Self, SourceError> {
        let (host, address) = match &config.address {
            Address::Unix { .. } => {
                let path = config.socket_path();
                let stream = UnixStream::connect(&path).await;
                let action = || format!("connect to {}", path.display());
                return Ok(Self::Unix(stream.map_err(|error| SourceError::io(action(), error))?));
            }
            Address::Tcp { host, address } => (host, *address),
        };
        let addresses = match address {
            Some(address) => vec![SocketAddr::new(address, config.port)],
            None => resolve(host, config.port).await?,
        };
        let stream = tcp(config, &addresses).await?;
        if config.ssl_mode == SslMode::Disable {
            return Ok(Self::Tcp(stream));
        }
        match (start_tls(config, host, stream).await, config.ssl_mode) {
            // libpq's meaning of `prefer`: what cannot be encrypted goes in plain.
            (Err(SourceError::Tls { .. } | SourceError::Io { .. }), SslMode::Prefer) => {
                Ok(Self::Tcp(tcp(config, &addresses).await?))
            }
            (result, _) => result,
        }
    }

    /// Hash of the server's certificate for channel binding, if there is TLS and such a hash.
    pub(crate) fn end_point(&self) -> Option<Vec<u8>> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => None,
            Self::Tls(stream) => {
                stream.get_ref().1.peer_certificates()?.first().and_then(|c| tls::end_point(c))
            }
        }
    }

    pub(crate) const fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Whether nobody on the way can read what is sent.
    pub(crate) const fn is_private(&self) -> bool {
        matches!(self, Self::Tls(_) | Self::Unix(_))
    }
}

async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, SourceError> {
    let failed = |source| SourceError::Resolve { host: host.to_owned(), source };
    let found: Vec<_> = lookup_host((host, port)).await.map_err(failed)?.collect();
    if found.is_empty() {
        return Err(failed(io::Error::from(io::ErrorKind::NotFound)));
    }
    Ok(found)
}

async fn tcp(config: &SourceConfig, addresses: &[SocketAddr]) -> Result<TcpStream, SourceError> {
    let connected = TcpStream::connect(addresses).await.and_then(|stream| {
        stream.set_nodelay(true)?;
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(KEEPALIVE_IDLE)
            .with_interval(KEEPALIVE_INTERVAL);
        socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        Ok(stream)
    });
    connected.map_err(|error| SourceError::io(format!("connect to {}", config.server()), error))
}

async fn start_tls(
    config: &SourceConfig,
    host: &str,
    mut stream: TcpStream,
) -> Result<Transport, SourceError> {
    let failed = |source| SourceError::Tls { host: host.to_owned(), source };
    let mut request = BytesMut::new();
    SslRequest::new()
        .encode(&mut request)
        .map_err(|error| SourceError::unexpected("the TLS request", error.to_string()))?;
    let asked = async {
        stream.write_all(&request).await?;
        stream.read_u8().await
    };
    let broken = |error| SourceError::io(format!("ask {} for TLS", config.server()), error);
    // One byte and not more: what comes before the handshake must not be taken for its content.
    match asked.await.map_err(broken)? {
        b'S' => {}
        b'N' if config.ssl_mode == SslMode::Prefer => return Ok(Transport::Tcp(stream)),
        // An error message: the server could not even start a session.
        b'E' => return Err(SourceError::Closed { during: "the TLS request".to_owned() }),
        b'N' => {
            return Err(SourceError::Setting {
                setting: "sslmode",
                expected: "a server that speaks TLS".to_owned(),
                found: "one that does not".to_owned(),
                message: format!("{} does not speak TLS, which sslmode demands", config.server()),
            });
        }
        other => {
            let found = format!("byte {other:#04x}");
            return Err(SourceError::unexpected("the TLS request", found));
        }
    }
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
    let connector = TlsConnector::from(tls::client(config)?);
    let stream = connector
        .connect(name, stream)
        .await
        .map_err(|error| if is_tls(&error) { failed(error) } else { broken(error) })?;
    Ok(Transport::Tls(Box::new(stream)))
}

/// Whether an error is of TLS and not of the connection below it.
pub(crate) fn is_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
        }
    }
}
