#ifndef FRAMEWORK_DATA_READ_TOKEN_TYPE_H_
#define FRAMEWORK_DATA_READ_TOKEN_TYPE_H_

#include <cstdint>

namespace tessera {

// The integer type of the tokens in a file.
enum class TokenType {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kInt64,
};

// Returns visit(T{}), where T is the C++ type of `type`.
template <typename Visitor>
auto VisitTokenType(TokenType type, const Visitor& visit) {
  switch (type) {
    case TokenType::kUint8:
      return visit(uint8_t{});
    case TokenType::kInt8:
      return visit(int8_t{});
    case TokenType::kUint16:
      return visit(uint16_t{});
    case TokenType::kInt16:
      return visit(int16_t{});
    case TokenType::kUint32:
      return visit(uint32_t{});
    case TokenType::kInt32:
      return visit(int32_t{});
    case TokenType::kInt64:
      break;
  }
  return visit(int64_t{});
}

inline int64_t TokenBytes(TokenType type) {
  return VisitTokenType(type,
                        [](auto token) { return int64_t{sizeof(token)}; });
}

}  // namespace tessera

#endif  // FRAMEWORK_DATA_READ_TOKEN_TYPE_H_
