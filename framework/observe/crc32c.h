#ifndef FRAMEWORK_OBSERVE_CRC32C_H_
#define FRAMEWORK_OBSERVE_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace tessera {

// CRC-32C (Castagnoli; RFC 3720, appendix B.4): reflected polynomial
// 0x82F63B78, initial value and final xor 0xFFFFFFFF.
uint32_t Crc32c(absl::string_view bytes);

// The checksum as TFRecord stores it, rotated right by 15 bits plus 0xA282EAD8,
// so that a checksum over data that contains checksums does not degenerate.
uint32_t MaskedCrc32c(absl::string_view bytes);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_CRC32C_H_
