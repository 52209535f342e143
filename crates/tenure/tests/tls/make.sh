#!/bin/sh
# Makes the certificates of the TLS tests anew: a CA, and a server's certificate for localhost and
# 127.0.0.1. Both are valid from 2020 to 2120, whatever a machine's clock says. The CA's key is
# thrown away, so that nobody can sign with it.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
touch "$work/index"
cat >"$work/ca.cnf" <<END
[ca]
default_ca = own
[own]
database = $work/index
new_certs_dir = $work
default_md = sha256
policy = any
rand_serial = yes
[any]
commonName = supplied
[ca_ext]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server_ext]
basicConstraints = CA:FALSE
keyUsage = digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:localhost, IP:127.0.0.1
END
key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null; }
request() { openssl req -new -key "$1" -subj "$2" -out "$work/request"; }
sign() {
    openssl ca -batch -notext -config "$work/ca.cnf" -startdate 20200101000000Z \
        -enddate 21200101000000Z -keyfile "$work/ca.key" -in "$work/request" "$@" 2>/dev/null
}
key "$work/ca.key"
request "$work/ca.key" "/CN=Tenure test CA"
sign -selfsign -extensions ca_ext -out ca.crt
key server.key
request server.key "/CN=localhost"
sign -cert ca.crt -extensions server_ext -out server.crt
