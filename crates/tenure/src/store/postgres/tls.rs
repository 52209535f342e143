//! Encryption of connections: libpq's modes, implemented with rustls.
//!
//! | sslmode | encrypted | certificate |
//! |---|---|---|
//! | `disable` | no | |
//! | `prefer`, `allow` | if the server can | not checked |
//! | `require` | yes | not checked; with `sslrootcert`, as `verify-ca` |
//! | `verify-ca` | yes | signed by a trusted root |
//! | `verify-full` | yes | signed by a trusted root, and issued for this host |
//!
//! Where the certificate is not checked, the handshake's signature still is: the server must own
//! the key of the certificate that it shows, because SCRAM's channel binding depends on that. The
//! roots are those of `sslrootcert`, or otherwise those of the machine.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::job::Invalid;
use crate::store::{Error, Result};

/// The mode of an address, in rising order of security.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// The trusted roots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Roots {
    System,
    File(PathBuf),
}

/// The settings of an address for encryption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Encryption {
    pub(super) mode: Mode,
    roots: Roots,
}

impl Encryption {
    /// Combines `sslmode` and `sslrootcert`.
    pub(super) fn choose(mode: Option<&str>, root: Option<&str>) -> Result<Encryption> {
        let refuse = |why: &str| Err(Invalid::Value { field: "db", why: why.to_owned() }.into());
        let roots = match root {
            None | Some("system") => Roots::System,
            Some(file) => Roots::File(file.into()),
        };
        let mode = match mode {
            None if root == Some("system") => Mode::VerifyFull,
            None | Some("prefer" | "allow") => Mode::Prefer,
            Some("disable") => Mode::Disable,
            Some("require") if matches!(roots, Roots::File(_)) => Mode::VerifyCa,
            Some("require") => Mode::Require,
            Some("verify-ca") => Mode::VerifyCa,
            Some("verify-full") => Mode::VerifyFull,
            Some(_) => {
                return refuse(
                    "sslmode cannot be read; write disable, prefer, require, verify-ca or \
                     verify-full",
                );
            }
        };
        // Anybody can get a certificate of a public authority; only the name in it proves which
        // server it is.
        if root == Some("system") && mode != Mode::VerifyFull {
            return refuse("sslrootcert=system needs sslmode=verify-full; write that, or no mode");
        }
        Ok(Encryption { mode, roots })
    }

    /// The connector for the handshake. It reads the roots, so it is made once and kept.
    pub(super) fn connector(&self, target: &str) -> Result<MakeRustlsConnect> {
        let failed = |cause: rustls::Error| Error::Unusable {
            target: target.to_owned(),
            problem: format!("TLS cannot be set up: {cause}"),
            next: "check sslrootcert in the address".to_owned(),
        };
        // Name the provider, because the application may have installed another one as its default.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(failed)?;
        let verifier: Arc<dyn ServerCertVerifier> = match self.mode {
            Mode::Disable | Mode::Prefer | Mode::Require => {
                Arc::new(Lenient { roots: None, provider })
            }
            Mode::VerifyCa => Arc::new(Lenient { roots: Some(self.roots.read(target)?), provider }),
            Mode::VerifyFull => {
                let roots = Arc::new(self.roots.read(target)?);
                WebPkiServerVerifier::builder_with_provider(roots, provider)
                    .build()
                    .map_err(|cause| failed(rustls::Error::General(cause.to_string())))?
            }
        };
        let mut config =
            builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        // PostgreSQL 17 requires this for sslnegotiation=direct; other versions ignore it.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(MakeRustlsConnect::new(config))
    }
}

impl Roots {
    fn read(&self, target: &str) -> Result<RootCertStore> {
        let unusable = |problem: String, next: &str| {
            Err(Error::Unusable { target: target.to_owned(), problem, next: next.to_owned() })
        };
        let mut store = RootCertStore::empty();
        match self {
            Roots::System => {
                // One bad file among hundreds is common, and no reason to refuse the others.
                let found = rustls_native_certs::load_native_certs();
                store.add_parsable_certificates(found.certs);
                if store.is_empty() {
                    return unusable(
                        "this machine has no trusted certificates".into(),
                        "install the package ca-certificates, or name a file with sslrootcert",
                    );
                }
            }
            Roots::File(file) => {
                let read = CertificateDer::pem_file_iter(file)
                    .and_then(Iterator::collect::<Result<Vec<_>, _>>);
                let name = file.display();
                match read {
                    Ok(certificates) => drop(store.add_parsable_certificates(certificates)),
                    Err(cause) => {
                        return unusable(
                            format!("the root certificate {name} cannot be read: {cause}"),
                            "name a readable file in PEM format with sslrootcert",
                        );
                    }
                }
                if store.is_empty() {
                    return unusable(
                        format!("there is no certificate in {name}"),
                        "name a file in PEM format with sslrootcert",
                    );
                }
            }
        }
        Ok(store)
    }
}

/// Accepts a certificate whatever its name is, and without roots whatever its issuer is.
#[derive(Debug)]
struct Lenient {
    roots: Option<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            rustls::client::verify_server_cert_signed_by_trust_anchor(
                &ParsedCertificate::try_from(end_entity)?,
                roots,
                intermediates,
                now,
                self.provider.signature_verification_algorithms.all,
            )?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
