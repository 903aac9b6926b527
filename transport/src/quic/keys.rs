//! Authentication of the other end of a connection: it holds exactly the key that the peer named over its sealed link of TCP. Keys are
//! made for the session, and stand in no certificate (RFC 7250).

use std::fmt;
use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use quinn::rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use quinn::rustls::crypto::{CryptoProvider, ring as provider, verify_tls13_signature_with_raw_key};
use quinn::rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use quinn::rustls::server::AlwaysResolvesServerRawPublicKeys;
use quinn::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use quinn::rustls::sign::CertifiedKey;
use quinn::rustls::version::TLS13;
use quinn::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;

/// Bytes of a public key of Ed25519 as it is shown: a `SubjectPublicKeyInfo` in DER.
pub(super) const PUBLIC: usize = 44;
/// A public key as it is shown.
pub(super) type Public = [u8; PUBLIC];

/// What both sides say that they speak.
const PROTOCOL: &[u8] = b"gleaner";

/// This worker's key for the session.
#[derive(Clone)]
pub(super) struct Keys {
    own: Arc<CertifiedKey>,
    pub(super) public: Public,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

fn general(said: impl ToString) -> Error {
    Error::General(said.to_string())
}

impl Keys {
    pub(super) fn new() -> Result<Self, Error> {
        let private = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(general)?;
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(private.as_ref().to_vec()));
        let key = provider::sign::any_supported_type(&private)?;
        let public = key.public_key().map(|public| public.to_vec()).unwrap_or_default();
        let shown: Public = public.as_slice().try_into().map_err(general)?;
        Ok(Self { own: Arc::new(CertifiedKey::new(vec![CertificateDer::from(public)], key)), public: shown })
    }

    /// For who dials the holder of that key.
    pub(super) fn dialler(&self, peer: &Public) -> Result<Arc<QuicClientConfig>, Error> {
        let (pinned, provider) = Pinned::new(peer);
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(pinned)
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(
                &self.own,
            ))));
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        Ok(Arc::new(QuicClientConfig::try_from(config).map_err(general)?))
    }

    /// For who is dialled by the holder of that key.
    pub(super) fn acceptor(&self, peer: &Public) -> Result<Arc<QuicServerConfig>, Error> {
        let (pinned, provider) = Pinned::new(peer);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(pinned)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&self.own))));
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.max_early_data_size = 0;
        config.send_tls13_tickets = 0;
        Ok(Arc::new(QuicServerConfig::try_from(config).map_err(general)?))
    }
}

/// Takes one key, and no other.
#[derive(Debug)]
struct Pinned {
    key: Public,
    provider: Arc<CryptoProvider>,
}

impl Pinned {
    fn new(key: &Public) -> (Arc<Self>, Arc<CryptoProvider>) {
        let provider = Arc::new(provider::default_provider());
        (Arc::new(Self { key: *key, provider: Arc::clone(&provider) }), provider)
    }

    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        let is_it = shown.as_ref() == self.key;
        if is_it { Ok(()) } else { Err(CertificateError::ApplicationVerificationFailure.into()) }
    }

    fn signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        verify_tls13_signature_with_raw_key(
            message,
            &key,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(shown).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(general("TLS 1.2 is not spoken"))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(shown).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(general("TLS 1.2 is not spoken"))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
