#include "framework/dist/secret.h"

#include <sodium.h>

#include "absl/strings/escaping.h"
#include "framework/base/check.h"

namespace tessera {
namespace {

static_assert(kAuthenticatorSize == crypto_auth_BYTES);

const unsigned char* Bytes(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// Initialises libsodium; may be called from any thread, any number of times.
void Initialize() { TESSERA_CHECK(sodium_init() >= 0, "libsodium"); }

}  // namespace

std::string RandomBytes(size_t size) {
  Initialize();
  std::string bytes(size, '\0');
  randombytes_buf(bytes.data(), bytes.size());
  return bytes;
}

std::string NewSecret() {
  constexpr size_t kSecretBytes = 32;
  return absl::BytesToHexString(RandomBytes(kSecretBytes));
}

std::string Authenticator(absl::string_view secret, absl::string_view message) {
  Initialize();
  unsigned char key[crypto_auth_KEYBYTES];
  crypto_generichash(key, sizeof(key), Bytes(secret), secret.size(), nullptr,
                     0);
  std::string authenticator(kAuthenticatorSize, '\0');
  crypto_auth(reinterpret_cast<unsigned char*>(authenticator.data()),
              Bytes(message), message.size(), key);
  sodium_memzero(key, sizeof(key));
  return authenticator;
}

bool IsAuthenticator(absl::string_view authenticator, absl::string_view secret,
                     absl::string_view message) {
  if (authenticator.size() != kAuthenticatorSize) return false;
  const std::string expected = Authenticator(secret, message);
  return sodium_memcmp(authenticator.data(), expected.data(),
                       expected.size()) == 0;
}

}  // namespace tessera
