//! A fake server for tests: it speaks the start of the protocol and then refuses with an error that
//! the test chooses, or sends nothing. So connecting can be tested without a server, with and
//! without TLS, and the driver's errors are real.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::address::ServerAddress;
use super::dial::Dialer;
use super::link::Timeouts;
use crate::store::Error;

const SSL_REQUEST: u32 = 80_877_103;

/// How the server was called.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) is_encrypted: bool,
    /// The protocol that the client named in the handshake.
    pub(super) protocol: Option<Vec<u8>>,
    /// The startup packet: names and values, each ended by a zero.
    pub(super) startup: String,
}

/// The server's answer: an SQLSTATE, or nothing at all.
pub(super) type Answer = fn(&Call) -> Option<&'static str>;

/// How the server reacts to a request for TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tls {
    Lacks,
    Has,
    /// Accepts the request, and then sends garbage.
    Botches,
}

pub(super) struct Fake {
    pub(super) port: u16,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Fake {
    pub(super) fn start(tls: Tls, answer: Answer) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        // The thread ends with the test's process. A client that disconnects is no error.
        thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming() {
                silent.extend(stream.and_then(|stream| serve(stream, tls, answer, &seen)).ok());
            }
        });
        Fake { port, calls }
    }

    /// The address of this server, with further settings.
    pub(super) fn address(&self, settings: &str) -> ServerAddress {
        let is_given = ["host=", "hostaddr="].iter().any(|key| settings.contains(key));
        let host = if is_given { "" } else { "host=127.0.0.1" };
        let text = format!("{host} port={} user=me {settings}", self.port);
        ServerAddress::read(&text, &|_| None).unwrap()
    }

    /// The error of connecting, which never succeeds.
    pub(super) fn refusal(&self, settings: &str) -> Error {
        let address = self.address(settings);
        let dialed =
            Dialer::new(&address, Timeouts::default()).and_then(|mut dialer| dialer.dial(&address));
        dialed.err().expect("a fake server lets nobody in")
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }
}

/// The path of a certificate for tests.
pub(super) fn certificate(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

fn serve(
    mut stream: TcpStream,
    tls: Tls,
    answer: Answer,
    calls: &Mutex<Vec<Call>>,
) -> io::Result<TcpStream> {
    let first = packet(&mut stream)?;
    if first[..4] != SSL_REQUEST.to_be_bytes() {
        return reply(&mut stream, &first, None, answer, calls).map(|()| stream);
    }
    match tls {
        Tls::Lacks => {
            stream.write_all(b"N")?;
            let startup = packet(&mut stream)?;
            reply(&mut stream, &startup, None, answer, calls)?;
        }
        Tls::Botches => stream.write_all(b"Snonsense, and enough of it to be an answer")?,
        Tls::Has => {
            stream.write_all(b"S")?;
            let session = ServerConnection::new(server_config()).map_err(io::Error::other)?;
            let mut encrypted = StreamOwned::new(session, stream.try_clone()?);
            let startup = packet(&mut encrypted)?;
            let protocol = encrypted.conn.alpn_protocol().map(<[u8]>::to_vec);
            reply(&mut encrypted, &startup, Some(protocol), answer, calls)?;
        }
    }
    Ok(stream)
}

/// Reads one message without a type: its length, and then the rest.
fn packet(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut body = vec![0; u32::from_be_bytes(length) as usize - 4];
    stream.read_exact(&mut body)?;
    Ok(body)
}

/// Refuses the client, or sends nothing. `handshake` is the protocol that the handshake named, if
/// there was a handshake.
fn reply(
    stream: &mut impl Write,
    startup: &[u8],
    handshake: Option<Option<Vec<u8>>>,
    answer: Answer,
    calls: &Mutex<Vec<Call>>,
) -> io::Result<()> {
    let startup = String::from_utf8_lossy(&startup[4..]).into_owned();
    let call = Call { is_encrypted: handshake.is_some(), protocol: handshake.flatten(), startup };
    let code = answer(&call);
    calls.lock().unwrap().push(call);
    let Some(code) = code else { return Ok(()) };
    let fields = format!("SFATAL\0VFATAL\0C{code}\0Mas the test wants it\0clease\0\0");
    let mut message = vec![b'E'];
    message.extend((fields.len() as u32 + 4).to_be_bytes());
    message.extend(fields.as_bytes());
    stream.write_all(&message)?;
    stream.flush()
}

fn server_config() -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = vec![CertificateDer::from_pem_file(certificate("server.crt")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(certificate("server.key")).unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Arc::new(config)
}
