#ifndef FRAMEWORK_DIST_RANK_LIST_H_
#define FRAMEWORK_DIST_RANK_LIST_H_

#include <string>
#include <vector>

namespace tessera {

// "rank 3", "ranks 1, 2"; with more than 16 ranks, "... and 48 more".
std::string RankList(const std::vector<int>& ranks);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_RANK_LIST_H_
