"""What can happen in a story: each plot is a few sentences, each with many wordings.

Slots: `name`, `kind`, `thing`, `friend` ("an owl" is `<a:friend>`), `he`, `his`, `him`.
A plot begins after the hero is introduced and stops before the last sentence.
"""
# ruff: noqa: E501 - a wording stays on its line

from dataclasses import dataclass


@dataclass(frozen=True)
class Plot:
    """A course of events, and what a visitor may ask about it afterwards."""

    about: str
    lines: tuple[str, ...]
    found: str
    helped: str
    end: str


PLOTS = (
    Plot(
        "losing something and finding it again",
        (
            "{One morning|One day|One windy day}, <name> {could not find|had lost} <his> {favourite|dear|} <thing>.",
            "<he> {looked|searched} {under the bed|behind every stone|in the tall grass|on every shelf}, "
            "but the <thing> was {gone|nowhere|not there}.",
            "{At last|Then|After a while} <a:friend> {came by|stopped|heard <him> sigh} and said, "
            '"{Let us look together|Two can look better than one|I will help you look}."',
            "They found the <thing> {beside the well|in the roots of a tree|under a pile of leaves|at the foot of the stairs}, "
            "{where <name> had left it|right where the wind had dropped it|covered with dust}.",
        ),
        "It was {under some leaves|not far away}, and the <friend> helped to find it.",
        "The <friend> helped to look for the <thing>.",
        "{They|<name> and the <friend>} found the <thing> together.",
    ),
    Plot(
        "finding something that belongs to somebody else",
        (
            "{One evening|One day|After the rain}, <name> found <a:thing> {by the path|in the grass|in the mud|on the step}.",
            '"{Somebody must miss this|This is not mine|Whose is this}", <he> {thought|said}, '
            "and {went|set off} to {find the owner|ask everyone nearby}.",
            "{Nobody knew|Everyone shook their heads}, until <he> met <a:friend> who was {close to tears|looking everywhere|very sad}.",
            '"{My|Oh, my} <thing>!" {cried|laughed|whispered} the <friend>. "{I thought it was gone|I looked for it all day}."',
        ),
        "<name> found <a:thing>, and it belonged to the <friend>.",
        "<name> helped the <friend> by bringing the <thing> back.",
        "<name> gave the <thing> back to the <friend>.",
    ),
    Plot(
        "a storm and a warm place",
        (
            "{One night|One dark evening}, a {great|wild|loud} storm {came up|blew in from the west|began}.",
            "<name> {held|hugged} <his> <thing> and listened to the {thunder|wind|rain}.",
            "Then there was a knock: <a:friend> stood outside, {wet and cold|shaking with cold|with nowhere to go}.",
            '"{Come in|Come in quickly|There is room for two}", said <name>, and they {shared a hot soup|sat close together|told each other stories}.',
            "{By morning|When the sun came up}, the storm was over{| and the sky was clean and blue}.",
        ),
        "It was <his> own <thing>, and <he> held it through the storm.",
        "<name> let the <friend> in when the storm came.",
        "The storm passed, and <name> and the <friend> were safe.",
    ),
    Plot(
        "learning to share",
        (
            "<name> had a {wonderful|beautiful|very fine} <thing> and {would not share it|never let anyone touch it|kept it all to <him>self}.",
            '{One day|One afternoon} <a:friend> asked, "{May I see it|Can I try it|May I hold it for a while}?" '
            '"No", said <name>, {and turned away|and hid it}.',
            "But {playing alone was dull|the days grew long and quiet|nobody came to visit any more}.",
            'So <name> {took|carried} the <thing> to the <friend> and said, "{Let us share it|It is better with two|I am sorry. It is yours too}."',
        ),
        "It was <his> own <thing>, and in the end <he> shared it.",
        "Nobody helped, but the <friend> forgave <name>.",
        "<name> shared the <thing> with the <friend>.",
    ),
    Plot(
        "a contest",
        (
            "{Every spring|Once a year|That summer} there was a {contest|fair} for the {best|finest|most unusual} {find|treasure|invention}.",
            "<name> {wanted to win|worked for weeks} and brought <his> <thing>, {polished and bright|wrapped in a cloth}.",
            "{On the way|Just before the start}, <he> {tripped|slipped|bumped into a fence} and the <thing> {was bent|got a crack|fell into the mud}.",
            '<a:friend> {saw it and stopped|came running}. "{We can mend it|It is not so bad|I know what to do}", <a:friend> is never short of ideas.',
            "Together they {cleaned|mended} the <thing>, and {it looked better than before|everyone clapped}.",
        ),
        "It was <his> own <thing>, and <he> brought it to the contest.",
        "The <friend> helped to mend the <thing>.",
        "<name> {came second and was happy anyway|won a small prize}.",
    ),
    Plot(
        "being afraid and going anyway",
        (
            "<name> was afraid of {the dark|deep water|loud noises|high places}, {but told nobody|and everyone knew it}.",
            "{One night|One day} <he> heard <a:friend> {calling for help|cry out} from {across the water|the dark path|the top of the rocks}.",
            "<name> {took|picked up|grabbed} <his> <thing>, {closed <his> eyes for a moment|took a deep breath}, and {went|ran}.",
            "{Step by step|Slowly|With a beating heart}, <he> {reached|got to} the <friend> and {led|brought} the <friend> home.",
        ),
        "It was <his> <thing>, and it made <him> feel brave.",
        "<name> helped the <friend>, even though <he> was afraid.",
        "<name> brought the <friend> home and was not so afraid any more.",
    ),
    Plot(
        "a gift",
        (
            "It was {nearly winter|almost midsummer|the week of the festival}, and <name> wanted a gift for <his> friend, the <friend>.",
            "<he> had {no money|only two coins|nothing to give}, so <he> {decided to make one|went out to find one}.",
            "{All week|Day after day} <he> {worked in secret|tried and tried again}, and {at last there was|in the end <he> had} <a:thing>, {a little crooked but fine|small and perfect}.",
            'The <friend> {opened the box|looked at it for a long time} and said, "{Nobody ever made me <a:thing>|It is the best <thing> in the world}."',
        ),
        "The <thing> was a gift for the <friend>.",
        "Nobody helped: <name> made the gift alone.",
        "The <friend> loved the gift.",
    ),
    Plot(
        "mending something",
        (
            "<his> {old|favourite|only} <thing> {broke|stopped working|fell apart} {one morning|on a rainy day|without warning}.",
            "<name> {tried string|tried glue|shook it} and {tried patience|said a rude word}, but {nothing worked|it only got worse}.",
            '"{Let me see}", said <a:friend> {from next door|who was passing by}. "{First we look, then we mend|You only need to turn it round|It needs one small screw}."',
            "{They worked all afternoon|An hour later}, {and the <thing> was as good as new|and the <thing> worked again}.",
        ),
        "The <thing> was broken, and the <friend> helped to mend it.",
        "The <friend> showed <name> how to mend the <thing>.",
        "The <thing> worked again.",
    ),
    Plot(
        "one wish",
        (
            "{One day|At midnight|On <his> birthday}, <name> found {a strange|an old|a glowing} <thing> that {could speak|hummed softly}.",
            '"{I can grant one wish|You may wish for one thing|One wish, and only one}", {it said|said the <thing>}.',
            "<name> thought of {gold|a bigger house|a mountain of cake}, but then <he> saw <a:friend> {who was ill|who could not get home|sitting all alone}.",
            '"{I wish that the <friend> is well and happy|Please help the <friend>}", said <name>, and {it was so|the <thing> began to shine}.',
        ),
        "<name> found a magic <thing> that could grant one wish.",
        "<name> used the wish to help the <friend>.",
        "<name> gave <his> wish away, and the <friend> was happy.",
    ),
    Plot(
        "a strange noise",
        (
            "Every night there was a {strange|soft|scratchy} noise: {tap, tap, tap|hoo, hoo|scritch, scratch|ding, dong}.",
            "{Nobody dared to look|Everyone said it was a ghost}, but <name> {wanted to know|could not sleep} and {tiptoed out|went to look}.",
            "{Behind the wall|In the moonlight|Round the corner} sat <a:friend> with <a:thing>, {trying to learn a tune|building something|practising in secret}.",
            '"{I did not want to wake you|I am sorry for the noise|You found me}", said the <friend>, {blushing|smiling|very quietly}.',
        ),
        "The <friend> had the <thing>, and it made the noise.",
        "Nobody needed help, but <name> and the <friend> became friends.",
        "The noise was only the <friend> with the <thing>.",
    ),
    Plot(
        "a long trade",
        (
            "<name> wanted {an apple|a warm hat|a loaf of bread|a ride in a boat} but had only <a:thing>.",
            "<he> {gave|traded} the <thing> {for a hat, the hat for a drum|for a hen, the hen for a coat|for a map, the map for a bell}, {and so on all day|and went on trading}.",
            "{At sunset|In the end} <he> met <a:friend> who {held|had} the very same <thing> and {looked sad|sighed}.",
            '"{I have too many things and no company|I would give it all for somebody to talk to}", said the <friend>.',
        ),
        "<name> traded the <thing> away and saw it again in the evening.",
        "The <friend> gave the <thing> back to <name>.",
        "<name> got the <thing> back, and a friend as well.",
    ),
    Plot(
        "crossing a river",
        (
            "{After the rain|In spring} the {river|stream} was high and the bridge was {gone|broken|under water}.",
            "On the other side {stood|waited|sat} <a:friend>, {hungry and tired|calling and waving}.",
            "<name> looked at <his> <thing> and {had an idea|began to smile|thought hard}.",
            "{With the <thing>, a rope and some luck|Using the <thing> and a long branch|With the <thing> and two logs}, <he> {made a raft|built a small bridge|got across}.",
        ),
        "It was <his> own <thing>, and <he> used it to cross the river.",
        "<name> helped the <friend> over the river.",
        "The <friend> came over the river safely.",
    ),
    Plot(
        "a hard winter",
        (
            "{That winter|One year} the snow {lay deep|did not stop} and {food was short|everyone stayed inside}.",
            "<name> had {one last loaf|a few nuts|a bowl of soup} and <his> <thing>, {and that was all|nothing more}.",
            "{When|One night, when} <a:friend> came to the door, {thin and cold|tired and hungry}, <name> {shared what <he> had|gave half of it}.",
            "{In spring|When the snow melted}, the <friend> came back with {a whole basket of food|seeds for a garden|a big smile}.",
        ),
        "It was <his> own <thing>, and <he> kept it through the winter.",
        "<name> helped the <friend> through the winter, and the <friend> came back to say thanks.",
        "Spring came, and the <friend> came back.",
    ),
    Plot(
        "a birthday",
        (
            "It was <his> birthday, but {nobody came|nobody seemed to know|everyone was busy}.",
            "<name> {sat by the window|lit one candle|made a small cake} and {tried not to cry|waited}.",
            "{Then the door opened|Just before sunset}: there was <a:friend> with <a:thing>, {wrapped in paper|tied with a bow}.",
            '"{Did you think I would forget|Happy birthday|Surprise}!" {said|shouted} the <friend>.',
        ),
        "The <thing> was a birthday present from the <friend>.",
        "The <friend> came with a present.",
        "<name> had a happy birthday after all.",
    ),
    Plot(
        "looking far away for what is near",
        (
            "<name> had heard of a {wonderful|golden|magic} <thing> {far away|beyond the hills|at the end of the world}.",
            "<he> walked for {seven days|a whole month|a long, long time}, {over hills and through rain|asking everyone on the way}.",
            '{At the end of the road|On the last hill} <a:friend> laughed and said, "{You walked past it|It was at home the whole time|Go home and look under your bed}."',
            "{So|And so} <name> {went home|turned round}, and there {it was|lay the <thing>}, {behind the door|in the old chest|under the window}.",
        ),
        "<name> found the <thing> at home, after a long walk.",
        "The <friend> told <name> where to look.",
        "<name> found the <thing> at home.",
    ),
    Plot(
        "a thief with a reason",
        (
            "{One morning|On a foggy day} <his> <thing> {had been stolen|was missing}, and there were {footprints|little tracks} {in the snow|in the mud|on the floor}.",
            "<name> {followed them|went after them} {all day|over the hill} and found <a:friend> {hiding|sitting} with the <thing>.",
            '"{I only wanted to borrow it|I needed it|I am sorry}", said the <friend>. "{My little ones were cold|I was so alone|I have never had <a:thing>}."',
            '<name> {was angry, but only for a moment|thought about it} and {sat down beside the <friend>|said, "Next time, just ask"}.',
        ),
        "The <friend> had taken the <thing>.",
        "<name> helped the <friend> by forgiving.",
        "<name> forgave the <friend>.",
    ),
    Plot(
        "teaching somebody",
        (
            "<a:friend> {came to live nearby|moved in next door} who could not {swim|read|dance|whistle|count}.",
            "{Everyone laughed|The others laughed}, but <name> did not{| laugh at all}.",
            '"{I will teach you|It is easy once you know how}", said <name>, and {used <his> <thing> to show how|brought <his> <thing> along for luck}.',
            "They practised {every day|all summer|each evening}, and {one day it worked|slowly it got better}.",
        ),
        "It was <his> own <thing>, and <he> used it for teaching.",
        "<name> taught the <friend>.",
        "The <friend> learned it in the end.",
    ),
    Plot(
        "something from the sky",
        (
            "{One clear night|One evening} something {fell from the sky|came down like a spark} and landed {with a soft thud|in the grass}.",
            "<name> {ran out|went to look} and found <a:thing>, {still warm|glowing a little}.",
            '"{That is mine|Excuse me, I dropped that}", said <a:friend> {from a cloud|who had climbed down a moonbeam|from behind a tree}.',
            "They {sat|talked} until {dawn|the stars faded}, and {then the <friend> had to go home|then it was time to say goodbye}.",
        ),
        "<name> found the <thing> after it fell from the sky.",
        "<name> gave the <thing> back to the <friend>.",
        "The <friend> went home, and <name> waved.",
    ),
    Plot(
        "planting and waiting",
        (
            "<name> had a {funny|silly|strange} idea: <he> {planted|buried} <his> <thing> in the {garden|ground}.",
            '{Everyone laughed|"Nothing will grow", said everyone}, but <he> {watered it every day|waited and waited}.',
            "Only <a:friend> {helped to carry water|sat with <him> and waited|believed <him>}.",
            "{One morning|In spring} there was a {tree|bush|flower}, and {on every branch hung|in the middle sat} a {tiny|little|shining} <thing>.",
        ),
        "<name> planted the <thing> in the garden.",
        "The <friend> helped with the watering.",
        "A wonderful plant grew in the garden.",
    ),
    Plot(
        "a lost way",
        (
            "{One foggy evening|One night} <name> {lost <his> way|took the wrong path} and {everything looked the same|it grew dark}.",
            "<he> had nothing with <him> but <a:thing>.",
            "{Then|After an hour} <he> heard steps. It was <a:friend>, {who was lost too|just as lost as <he> was}.",
            '"{Two are never quite lost|Let us try together|I will watch left, you watch right}", said <name>, {and held up the <thing>|and they walked on}.',
            "{At last|Before dawn} they saw {a light|smoke from a chimney|the first house}.",
        ),
        "It was <his> <thing>, the only thing <he> had on the dark path.",
        "<name> and the <friend> helped each other.",
        "They found the way home together.",
    ),
    Plot(
        "a new friend",
        (
            "{Most days|Every day} <name> {played alone|had nobody to talk to}, with only <a:thing> for company.",
            '{One day|One afternoon} <a:friend> {sat down beside <him>|looked over the wall} and asked, "{What is that|Is that <a:thing>}?"',
            "<name> {was shy at first|did not know what to say}, but {soon|then} they were {laughing|talking} {like old friends|about everything}.",
            "{They took turns with the <thing>|The <friend> knew a good game with the <thing>}, {until the sun went down|until it was time for supper}.",
        ),
        "It was <his> own <thing>, and <he> shared it with a new friend.",
        "The <friend> helped <name> to be less alone.",
        "<name> and the <friend> became friends.",
    ),
    Plot(
        "a big mistake",
        (
            "<name> {borrowed|was asked to look after} <a:thing> that belonged to <a:friend>.",
            "{It was an accident|<he> only looked away for a moment}, but the <thing> {fell and broke|rolled into the river|was gone}.",
            "<name> wanted to {hide|run away|say nothing}, and {could not sleep|had a stomach ache all night}.",
            '{In the morning|The next day} <he> told the truth. "{Thank you for telling me|Things can be mended, and so can this}", said the <friend>.',
        ),
        "The <thing> belonged to the <friend>, and <name> had borrowed it.",
        "The <friend> was kind and forgave <name>.",
        "<name> told the truth, and the <friend> was not angry.",
    ),
)

ENDINGS = (
    "From that day on, {they were friends|<name> and the <friend> were the best of friends|they did everything together}.",
    "{That night|That evening} <name> {slept very well|fell asleep with a smile|dreamed of {the sea|flying|cake}}.",
    "And {if you walk by|if you listen carefully}, you can still hear them {laugh|sing}.",
    "{Since then|Ever since}, the <thing> {stands|lies} by the window, and {everyone knows the story|<name> smiles every time <he> sees it}.",
    "{And that was that|And so it ended}: a good day, {a good friend|a new friend} and <a:thing>.",
    "{They drank tea|They had supper|They ate cake} together, and {nobody was sad any more|the whole world looked kinder}.",
    "<name> learned that {a friend is worth more than <a:thing>|it is good to ask for help|small things can matter a lot|being brave means going even when you are afraid}.",
    "{The <friend>|The <friend> smiled and} {never forgot|always remembered} what <name> had done.",
    "{And every year|Each year} they {met again|celebrate that day} with {soup and songs|cake and lemonade}.",
    "And they lived happily, {with the <thing> between them|for a long, long time}.",
)
SAD_ENDINGS = (
    "{In autumn|A year later} the <friend> had to go away, and <name> {kept the <thing> to remember|often looked down the empty road}.",
    "<name> {still misses|never saw} the <friend> {to this day|again}, but {the <thing> is still there|the memory is warm}.",
)
FUNNY_ENDINGS = (
    "Then the <friend> {sneezed|slipped on a banana}, and {they laughed until it hurt|the <thing> landed on <his> head}.",
    "{Only later|The next morning} <name> noticed that <he> had {worn the <thing> as a hat|carried the <thing> upside down} the whole time.",
)
