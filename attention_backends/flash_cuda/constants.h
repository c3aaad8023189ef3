#ifndef ATTENTION_BACKENDS_FLASH_CUDA_CONSTANTS_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_CONSTANTS_H_

namespace tessera {
namespace flash {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_CONSTANTS_H_
