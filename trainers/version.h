#ifndef TRAINERS_VERSION_H_
#define TRAINERS_VERSION_H_

namespace tessera {

inline constexpr char kTesseraVersion[] = "0.1.0";

}  // namespace tessera

#endif  // TRAINERS_VERSION_H_
