#ifndef FRAMEWORK_DIST_SECRET_H_
#define FRAMEWORK_DIST_SECRET_H_

#include <string>

#include "absl/strings/string_view.h"

namespace tessera {

// `size` bytes from the kernel's random generator.
std::string RandomBytes(size_t size);

// A new secret for one run: 256 random bits as hexadecimal digits.
std::string NewSecret();

// Size of an Authenticator in bytes.
inline constexpr size_t kAuthenticatorSize = 32;

// HMAC-SHA-512-256 of `message` with the key `secret`, of any length. It proves
// knowledge of the secret without revealing it.
std::string Authenticator(absl::string_view secret, absl::string_view message);

// Compares in constant time.
bool IsAuthenticator(absl::string_view authenticator, absl::string_view secret,
                     absl::string_view message);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_SECRET_H_
